//! `monarch env`: what a shell that evaluates it sees of a mistake, and of a failure.

use super::{Place, Said, path};
use std::process::{Command, Stdio};

/// A shell, by the name of its language for `env`, and how it evaluates `monarch env WORDS`.
struct Language {
    program: &'static str,
    name: &'static str,
    evaluate: &'static str,
    /// Prints the status of the command before.
    status: &'static str,
    /// The option that ends a script at the first command that fails.
    strict: Option<&'static str>,
}

const fn sh(program: &'static str) -> Language {
    let evaluate = "eval \"$(\"$MONARCH\" env --shell sh WORDS)\"";
    Language { program, name: "sh", evaluate, status: "echo \"status $?\"", strict: Some("-e") }
}

const LANGUAGES: [Language; 6] = [
    sh("sh"),
    sh("dash"),
    sh("bash"),
    sh("zsh"),
    Language {
        program: "tcsh",
        name: "csh",
        evaluate: "eval \"`$MONARCH:q env --shell csh WORDS`\"",
        status: "echo \"status $status\"",
        strict: Some("-e"),
    },
    Language {
        program: "fish",
        name: "fish",
        evaluate: "$MONARCH env --shell fish WORDS | source",
        status: "echo \"status $status\"",
        strict: None,
    },
];

impl Language {
    fn is_here(&self) -> bool {
        let found = Command::new(self.program).args(["-c", "true"]).output().is_ok_and(|o| o.status.success());
        assert!(found || !matches!(self.program, "sh" | "bash"), "{} is always there", self.program);
        found
    }

    /// Runs a script that evaluates `monarch env` with these words, and says how that ended.
    fn run(&self, p: &Place, options: &[&str], words: &str, set: &[(&str, &str)]) -> Said {
        let script = format!("{}\n{}\n", self.evaluate.replace("WORDS", words), self.status);
        let mut c = Command::new(self.program);
        c.args(options).args(["-c", &script]).current_dir(p.dir.path()).stdin(Stdio::null());
        for (k, _) in std::env::vars_os().filter(|(k, _)| k.to_string_lossy().starts_with("MONARCH_")) {
            c.env_remove(k);
        }
        c.env("MONARCH", env!("CARGO_BIN_EXE_monarch")).env("MONARCH_RUNTIME_DIR", p.at("run"));
        c.env("TMPDIR", p.at("tmp")).env("HOME", p.at("tmp")).envs(set.iter().copied());
        Said::from(c.output().expect("a shell"))
    }
}

/// Words that are mistakes, and what the message has.
const MISTAKES: [(&str, &str); 9] = [
    ("--rooot root", "--rooot"),
    ("--root", "--root"),
    ("root", "unexpected argument"),
    ("--root nowhere --tier tier:1MiB", "nowhere"),
    ("--root root --tier tier:12blah", "capacity"),
    ("--root root --tier tier/missing/too:1MiB", "only the last directory"),
    ("--root root --tier tier:1MiB --set no.such=1", "no.such"),
    ("--config nowhere.yaml", "nowhere.yaml"),
    ("--off --end", "cannot be used with"),
];

#[test]
fn a_mistake_fails_the_evaluation_in_each_shell_and_is_named() {
    let p = Place::new();
    for language in LANGUAGES.iter().filter(|l| l.is_here()) {
        for (words, about) in MISTAKES {
            let which = format!("{} {words}", language.program);
            // The shell continues, and sees it.
            let said = language.run(&p, &[], words, &[]);
            assert_eq!((said.code, said.out.trim()), (Some(0), "status 2"), "{which}: {said:#?}");
            assert!(said.err.contains(about), "{which}: no {about:?} in {said:#?}");
            // A script that ends at the first command that fails ends as `run` would have.
            let Some(option) = language.strict else { continue };
            let said = language.run(&p, &[option], words, &[]);
            assert_eq!((said.code, said.out.as_str()), (Some(2), ""), "{which}: {said:#?}");
        }
    }
    assert!(!p.at("tier/missing").exists());
}

#[test]
fn a_failure_of_monarch_never_fails_the_evaluation() {
    let p = Place::new();
    let good = "--root root --tier tier:1MiB";
    std::fs::write(p.at("file"), "").expect("write");
    let file = path(&p.at("file"));
    for language in LANGUAGES.iter().filter(|l| l.is_here()) {
        let options: Vec<&str> = language.strict.into_iter().collect();
        // No preload library; no place for the agent; switched off, with a mistake or without.
        for (words, set, said_so) in [
            (good, ("MONARCH_SHIM", "/no/such/library"), true),
            (good, ("MONARCH_RUNTIME_DIR", file.as_str()), true),
            (good, ("MONARCH_DISABLE", "1"), false),
            ("--root nowhere", ("MONARCH_DISABLE", "1"), false),
        ] {
            let said = language.run(&p, &options, words, &[set]);
            let which = format!("{} {words} {set:?}", language.program);
            assert_eq!((said.code, said.out.trim()), (Some(0), "status 0"), "{which}: {said:#?}");
            assert_eq!(said.err.contains("running without Monarch"), said_so, "{which}: {said:#?}");
        }
    }
}

#[test]
fn env_prints_a_line_for_the_shell_that_its_words_name() {
    let p = Place::new();
    for language in &LANGUAGES {
        let line = if language.name == "sh" { "(exit 2);\n" } else { "sh -c 'exit 2';\n" };
        let joined = format!("--shell={}", language.name);
        for words in
            [&["--shell", language.name, "--rooot"][..], &["--rooot", &joined], &[&joined, "--root", "nowhere"]]
        {
            let said = p.monarch([&["env"], words].concat());
            assert_eq!((said.code, said.out.as_str()), (Some(2), line), "{words:?}: {said:#?}");
        }
    }
    let said = p.monarch(["env", "--shell", "powershell"]);
    assert_eq!((said.code, said.out.as_str()), (Some(2), "(exit 2);\n"), "{said:#?}");
    assert!(said.err.contains("powershell") && said.err.contains("csh"), "{said:#?}");
    // Other commands print nothing for a shell.
    p.monarch(["status", "--shell", "sh"]).failed(2, &["--shell"]);
    let (root, tier) = (path(&p.at("root")), path(&p.at("tier")));
    p.monarch(["env", "--root", &root, "--tier", &tier]).fine(&["eval", "hold", &root, "--for $$"]);
}
