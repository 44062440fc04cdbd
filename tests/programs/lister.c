/* A library that wraps the function by which the loaded objects are listed, as the runtime of
 * ThreadSanitizer does. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>

typedef int visitor(struct dl_phdr_info *, size_t, void *);

int dl_iterate_phdr(visitor *visit, void *data)
{
    int (*next)(visitor *, void *) = (int (*)(visitor *, void *))dlsym(RTLD_NEXT, "dl_iterate_phdr");
    return next(visit, data);
}
