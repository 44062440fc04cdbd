//! What is written is read, and damage is found.

use super::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read(ops in proptest::collection::vec(op(), 0..300), finish in any::<bool>()) {
        let (all, lost, end) = read(&write(&ops, finish)).unwrap();
        prop_assert_eq!(all, expected(&ops));
        prop_assert_eq!(lost, ops.iter().map(|o| if let Op::Lost(n) = o { *n } else { 0 }).sum::<u64>());
        prop_assert_eq!(end, if finish { End::Whole } else { End::Unfinished });
    }

    #[test]
    fn cut_anywhere_it_gives_what_came_before(ops in proptest::collection::vec(op(), 0..60)) {
        let bytes = write(&ops, true);
        let whole = expected(&ops);
        for len in 0..bytes.len() {
            let Ok((all, _, end)) = read(&bytes[..len]) else { continue };
            prop_assert!(matches!(end, End::Torn | End::Unfinished), "{:?}", end);
            prop_assert_eq!(&all[..], &whole[..all.len()]);
        }
    }

    #[test]
    fn no_bytes_make_the_reader_panic(mut bytes in any::<Vec<u8>>(), ops in proptest::collection::vec(op(), 0..40), at in any::<usize>(), with in any::<u8>()) {
        let _ = read(&bytes);
        // With right checksums, too.
        let mut whole = write(&[], false);
        whole.extend(b"MTBK");
        whole.extend((bytes.len() as u32).to_le_bytes());
        whole.extend(xxhash_rust::xxh3::xxh3_64(&bytes).to_le_bytes());
        whole.append(&mut bytes);
        let _ = read(&whole);
        let mut good = write(&ops, true);
        let at = at % good.len();
        good[at] ^= with;
        if let Ok((all, ..)) = read(&good) {
            prop_assert_eq!(&all[..], &expected(&ops)[..all.len()]);
        }
    }
}

#[test]
fn an_access_takes_less_than_six_bytes() {
    let (one, three) = (write(&job(50_000, 1), true), write(&job(50_000, 3), true));
    let each = (three.len() - one.len()) as f64 / 100_000.0;
    assert!(each < 6.0, "{each}");
}

#[test]
fn statistics_of_a_shuffled_job() {
    let bytes = write(&job(5000, 4), true);
    let mut r = TraceReader::new(Cursor::new(bytes), Path::new("t")).unwrap();
    let s = stats(&mut r);
    assert_eq!((s.files, s.accesses, s.bytes, s.end, s.streams.len()), (5000, 20_000, 550_000_000, "whole", 16));
    assert_eq!(s.epochs.len(), 4);
    assert!(
        s.epochs.iter().all(|e| e.accesses.abs_diff(5000) < 50 && (e.duration_s - 1.5).abs() < 0.1),
        "{:?}",
        s.epochs
    );
    assert!(s.epochs[0].served.pfs == s.epochs[0].accesses && s.epochs[2].served.pfs == 0);
    assert_eq!(s.sizes, [Bin { up_to: 131_072, count: 5000 }]);
    assert_eq!(s.reuse.iter().map(|b| b.count).sum::<u64>(), 15_000);
    // A file that comes after x of an epoch and y of the next one has 1 - x + y files between, less
    // those that are in both: it is there with room c when x was at the end and y at the beginning.
    let ratio: Vec<f64> = s.lru.iter().map(|l| l.hit_ratio).collect();
    assert!(ratio.windows(2).all(|w| w[0] < w[1]) && ratio[0] < 0.03 && ratio[4] > 0.3 && ratio[4] < 0.75, "{ratio:?}");
}

#[test]
fn statistics_of_nothing() {
    let bytes = write(&[], true);
    let s = stats(&mut TraceReader::new(Cursor::new(bytes), Path::new("t")).unwrap());
    assert_eq!((s.files, s.accesses, s.epochs.len()), (0, 0, 0));
}

#[test]
fn other_files_are_refused() {
    let error = |bytes: &[u8]| read(bytes).unwrap_err().to_string();
    assert!(error(b"").contains("first bytes are not those of a trace"));
    assert!(error(b"time_s,stream,path,size,served").contains("first bytes are not those of a trace"));
    assert!(error(b"MONTRACE\x02\0\0\0").contains("another version"));
    let mut bytes = write(&[], true);
    assert!(error(&bytes[..30]).contains("cut short"));
    bytes[25] ^= 1;
    assert!(error(&bytes).contains("header is damaged"));
}
