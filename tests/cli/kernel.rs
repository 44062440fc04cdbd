//! `monarch kernel`: what it writes, finds and refuses. That notebooks run with it is tried by
//! `tests/recipes.py` in a real Jupyter client.

use super::{Place, path};
use serde_json::Value;
use std::fs;

/// A kernel of another language, with a logo, where Jupyter finds it.
fn foreign(p: &Place) {
    let dir = p.at("tmp/.local/share/jupyter/kernels/shell");
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("logo-64x64.png"), "a picture").unwrap();
    let spec = r#"{"argv": ["cat", "one", "{connection_file}"], "display_name": "Shell", "language": "sh", "env": {"A": "b"}}"#;
    fs::write(dir.join("kernel.json"), spec).unwrap();
}

fn spec(p: &Place, kernel: &str) -> Value {
    let file = p.at(kernel).join("kernel.json");
    serde_json::from_slice(&fs::read(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()))).unwrap()
}

#[test]
fn a_wrapped_kernel_runs_under_monarch_and_keeps_what_it_had() {
    let p = Place::new();
    foreign(&p);
    let (root, tier) = (path(&p.at("root")), format!("{}:1MiB", path(&p.at("tier"))));
    p.monarch(["kernel", "install", "--wrap", "shell", "--root", &root, "--tier", &tier]).fine(&[]);
    let ours = "tmp/.local/share/jupyter/kernels/monarch";
    let written = spec(&p, ours);
    assert_eq!(written["display_name"], "Shell (Monarch)");
    assert_eq!(written["env"]["A"], "b");
    assert_eq!(fs::read_to_string(p.at(ours).join("logo-64x64.png")).unwrap(), "a picture");
    // Its command, as Jupyter would start it in the root.
    let argv: Vec<&str> = written["argv"].as_array().unwrap().iter().map(|w| w.as_str().unwrap()).collect();
    let connection = path(&p.at("root/a/two"));
    let words: Vec<&str> = argv[1..].iter().map(|w| if *w == "{connection_file}" { &*connection } else { w }).collect();
    assert_eq!(words[..5], ["run", "--root", &*root, "--tier", &*tier], "{argv:?}");
    let said = p.monarch_in("root", words);
    assert_eq!((said.code, said.out.len()), (Some(0), 2001), "{said:?}");
    // It is listed, and is no kernel to wrap again.
    let listed: Value = serde_json::from_str(&p.monarch(["kernel", "list", "--json"]).out).unwrap();
    assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
    assert_eq!((&listed[0]["name"], &listed[0]["display_name"]), (&"monarch".into(), &"Shell (Monarch)".into()));
    let twice = p.monarch(["kernel", "install", "--wrap", "monarch", "--name", "again", "--root", &root]);
    assert!(twice.code == Some(1) && twice.err.contains("under Monarch already"), "{twice:?}");
    // Written again with other settings, then removed; the kernel that was wrapped stays.
    p.monarch(["kernel", "install", "--wrap", "shell", "--display-name", "B", "--root", &root]).fine(&[]);
    assert_eq!(spec(&p, ours)["display_name"], "B");
    p.monarch(["kernel", "remove"]).fine(&[]);
    assert!(!p.at(ours).exists() && p.at("tmp/.local/share/jupyter/kernels/shell/kernel.json").exists());
    assert_eq!(p.monarch(["kernel", "remove"]).code, Some(3));
}

#[test]
fn a_kernel_that_monarch_did_not_write_is_neither_replaced_nor_removed() {
    let p = Place::new();
    foreign(&p);
    let root = path(&p.at("root"));
    let install = |more: &[&str]| {
        p.monarch([&["kernel", "install", "--wrap", "shell", "--name", "Shell", "--root", &root], more].concat())
    };
    let said = install(&[]);
    assert!(said.code == Some(1) && said.err.contains("--replace"), "{said:?}");
    assert_eq!(p.monarch(["kernel", "remove", "shell"]).code, Some(3));
    assert_eq!(spec(&p, "tmp/.local/share/jupyter/kernels/shell")["display_name"], "Shell");
    install(&["--replace"]).fine(&[]);
    assert_eq!(spec(&p, "tmp/.local/share/jupyter/kernels/shell")["display_name"], "Shell (Monarch)");
}

#[test]
fn what_keeps_a_kernel_from_being_installed_is_said() {
    let p = Place::new();
    foreign(&p);
    let root = path(&p.at("root"));
    let cases: [(&[&str], i32, &str); 6] = [
        (&["--wrap", "julia", "--root", &root], 1, "there are: shell"),
        (&["--python", "/no/python", "--root", &root], 1, "cannot run /no/python"),
        (&["--python", "cat", "--root", &root], 1, "cat is no Python 3"),
        (&["--name", "../up", "--root", &root], 2, "letters, digits"),
        (&["--wrap", "shell"], 2, "root"),
        (&["--wrap", "shell", "--root", &root, "--set", "prefetch.enabled={x}"], 2, "prefetch.enabled"),
    ];
    for (words, code, text) in cases {
        let said = p.monarch([&["kernel", "install"], words].concat());
        assert!(said.code == Some(code) && said.err.contains(text), "{words:?}: {said:?}");
        assert!(!p.at("tmp/.local/share/jupyter/kernels/monarch").exists(), "{words:?}");
    }
}
