/* What gcompat lends: the name by which programs ask for the version of the GNU C library. */
const char *gnu_get_libc_version(void);
const char *gnu_get_libc_version(void) { return "2.8"; }
