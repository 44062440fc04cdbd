//! Traces from and to CSV files.

use super::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn csv_and_back(ops in proptest::collection::vec(op(), 0..100)) {
        let ops: Vec<Op> = ops.into_iter().filter(|o| matches!(o, Op::Add(a) if a.at.as_secs() < 1 << 30)).collect();
        let bytes = write(&ops, true);
        let mut csv = Vec::new();
        export(&mut TraceReader::new(Cursor::new(&bytes), Path::new("t")).unwrap(), u64::MAX, &mut csv).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("o");
        let count = import(&csv[..], Path::new("c"), &out, &TraceHeader::default()).unwrap();
        prop_assert_eq!(count, ops.len() as u64);
        let mut again = Vec::new();
        export(&mut TraceReader::open(&out).unwrap(), u64::MAX, &mut again).unwrap();
        prop_assert_eq!(String::from_utf8(csv), String::from_utf8(again));
    }

    #[test]
    fn no_csv_makes_the_import_panic(lines in "(time_s|stream|path|size|served|[,\"\n0-9.e-]){0,60}") {
        let dir = tempfile::tempdir().unwrap();
        let text = format!("time_s,stream,path,size\n{lines}");
        for text in [lines, text] {
            let _ = import(text.as_bytes(), Path::new("c"), &dir.path().join("o"), &TraceHeader::default());
        }
    }
}

#[test]
fn mistakes_in_csv_are_named_with_their_line() {
    let dir = tempfile::tempdir().unwrap();
    let error = |text: &str| {
        import(text.as_bytes(), Path::new("x.csv"), &dir.path().join("o"), &TraceHeader::default())
            .unwrap_err()
            .to_string()
    };
    let head = "time_s,stream,path,size,served\n";
    assert_eq!(
        error("a,b\n"),
        "x.csv, line 1: there is no column time_s; begin the file with: time_s,stream,path,size,served"
    );
    assert!(error("").contains("line 1: there is no column time_s"));
    assert!(
        error(&format!("{head}0,0,\"a\nb\",1,pfs\n0,0,a,1k,pfs\n"))
            .contains("line 4: size cannot be \"1k\"; give whole bytes")
    );
    assert!(error(&format!("{head}-1,0,a,1,pfs\n")).contains("line 2: time_s"));
    assert!(error(&format!("{head}1,70000,a,1,pfs\n")).contains("stream cannot be"));
    assert!(error(&format!("{head}1,7,,1,pfs\n")).contains("path cannot be"));
    assert!(error(&format!("{head}1,7,a,1,disk\n")).contains("give one of tier, waited, pfs"));
    assert!(error(&format!("{head}1,7,\"a,1,pfs\n")).contains("line 2: a quote is not closed"));
}
