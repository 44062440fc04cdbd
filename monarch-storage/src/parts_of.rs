//! Work over many entries, on several threads.

use std::ops::Range;

/// Entries for which another thread is worth it.
const PART_ENTRIES: u32 = 1 << 18;
/// Most threads: memory is the bound.
const MAX_THREADS: u32 = 8;

/// How work is cut into parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    /// Entries of a part, at least.
    least: u32,
    threads: u32,
}

impl Cut {
    /// A part for each processor of this machine, if they are worth it.
    pub(crate) fn for_machine() -> Self {
        let processors =
            std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(MAX_THREADS));
        Self { least: PART_ENTRIES, threads: processors.min(MAX_THREADS) }
    }

    /// This number of parts, or fewer when there are not as many entries.
    #[cfg(test)]
    pub(crate) fn into(threads: u32) -> Self {
        Self { least: 1, threads }
    }

    /// Calls `each` with parts that make up `0..entries`; what it returns, in the order of the
    /// parts. There is one part at least.
    pub(crate) fn each<T: Send>(self, entries: usize, each: impl Fn(Range<u32>) -> T + Sync) -> Vec<T> {
        in_parts_of(u32::try_from(entries).unwrap_or(u32::MAX), self.least, self.threads, each)
    }
}

/// [`Cut::each`] on this machine.
pub(crate) fn in_parts<T: Send>(entries: u32, each: impl Fn(Range<u32>) -> T + Sync) -> Vec<T> {
    Cut::for_machine().each(entries as usize, each)
}

fn in_parts_of<T: Send>(entries: u32, least: u32, threads: u32, each: impl Fn(Range<u32>) -> T + Sync) -> Vec<T> {
    let size = entries.div_ceil(threads.max(1)).max(least).max(1);
    let parts: Vec<Range<u32>> = (0..entries.div_ceil(size).max(1))
        .map(|n| n * size..n.saturating_add(1).saturating_mul(size).min(entries))
        .collect();
    let each = &each;
    std::thread::scope(|s| {
        let mut others: Vec<_> = Vec::new();
        for part in parts.iter().skip(1) {
            let (work, own) = (part.clone(), part.clone());
            let thread = std::thread::Builder::new().name("index".to_owned()).spawn_scoped(s, move || each(work));
            // (Where the system gives no thread, this one does it.)
            others.push(thread.map_err(|_| own));
        }
        let mut done: Vec<T> = parts.first().cloned().map(each).into_iter().collect();
        for other in others {
            match other {
                Ok(thread) => match thread.join() {
                    Ok(result) => done.push(result),
                    Err(panic) => std::panic::resume_unwind(panic),
                },
                Err(part) => done.push(each(part)),
            }
        }
        done
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_make_up_the_whole_in_order() {
        for (entries, least, threads) in
            [(0, 1, 2), (1, 1, 8), (10, 3, 8), (10, 1, 3), (u32::MAX, 1 << 20, 8), (7, 0, 0)]
        {
            let parts = in_parts_of(entries, least, threads, |part| part);
            let mut end = 0;
            for part in &parts {
                assert_eq!(part.start, end, "{parts:?}");
                end = part.end;
            }
            assert_eq!(end, entries);
            assert!(parts.len() <= threads.max(1) as usize, "{parts:?}");
        }
    }
}
