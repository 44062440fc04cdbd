//! Every message that the sources can print is in `docs/MESSAGES.md`, and that document
//! names no message that is gone.
//!
//! How it works. The sources are read as Rust tokens, and the string literals that read as prose
//! are taken for messages. Left out are texts that no user is shown: attributes other than
//! `#[error]` (help is printed by clap, on request), tests, reasons of `expect`, and texts that
//! something is compared with. The document is read for the code spans in the first column of its
//! tables whose header begins with "Message". What is filled in is `…` in both.

use proc_macro2::{Delimiter, LexError, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const DOCUMENT: &str = "docs/MESSAGES.md";
/// Where messages are made.
/// Sources with the labels of a page or a screen, which are no messages.
const LABELS: [&str; 4] =
    ["src/page.rs", "src/report/page.rs", "src/commands/simulate/plot.rs", "src/commands/top/view.rs"];

/// Prose in the sources that no message consists of, with the reason.
const NO_MESSAGES: &[(&str, &str)] = &[
    ("export …=", "for a shell to evaluate"),
    ("set -gx …", "for a shell to evaluate"),
    ("setenv …", "for a shell to evaluate"),
    ("exit …;", "for a shell to evaluate"),
    ("(exit …);", "for a shell to evaluate"),
    ("sh -c 'exit …';", "for a shell to evaluate"),
    ("eval `sh -c '\"$@\" || :' sh", "for a shell to evaluate"),
    ("Monarch nonce=\"…\", version=\"…\"", "HTTP"),
    ("Monarch-Tag: …", "HTTP"),
    ("a request without a proof", "stays inside: a connection always has a challenge"),
    ("a tag is 32 hexadecimal digits", "stays inside: a head without a tag is not authentic"),
    ("Monarch node=\"…\", nonce=\"…\", cnonce=\"…\", mac=\"…\"", "HTTP"),
    ("… … HTTP/1.1 Host: …", "HTTP"),
    ("HEAD / HTTP/1.1 Host: …", "HTTP"),
    ("HTTP/1.1 … … Content-Length: … … …", "HTTP"),
    ("HTTP/1.1 401 … Content-Length: 0 WWW-Authenticate: …", "HTTP"),
    ("Range: bytes=…-…", "HTTP"),
    ("Monarch-Hops: …", "HTTP"),
    ("Authorization: …", "HTTP"),
    ("WWW-Authenticate: …", "HTTP"),
    ("Allow: GET, HEAD, POST", "HTTP"),
    ("Upgrade Required", "HTTP"),
    ("no key of this length", "stays inside: the length is a constant"),
    ("a key without its public half", "stays inside: every Ed25519 key has one"),
    ("TLS 1.2 is not spoken", "stays inside: the library is told so"),
    ("its handshake is too long", "stays inside: counted as a handshake that failed"),
    ("Allow: GET, HEAD", "HTTP"),
    ("HTTP/1.1 … … Content-Type: text/plain; version=0.0.4; charset=utf-8", "HTTP"),
    ("Content-Length: … Connection: close", "HTTP"),
    ("Method Not Allowed", "HTTP"),
    ("# TYPE … …", "Prometheus' text format"),
    ("Request Header Fields Too Large", "HTTP"),
    ("Connection: close", "HTTP"),
    ("Content-Length: …", "HTTP"),
    ("bytes */…", "HTTP"),
    ("bytes …-…/…", "HTTP"),
    ("Partial Content", "HTTP"),
    ("Bad Request", "HTTP"),
    ("Not Found", "HTTP"),
    ("Range Not Satisfiable", "HTTP"),
    ("Misdirected Request", "HTTP"),
    ("Internal Server Error", "HTTP"),
    ("Service Unavailable", "HTTP"),
    ("another process listens at this address now", "of a double for tests"),
    ("the parser bounds it", "reason of a debug assertion"),
    ("the file's owner sends it elsewhere", "stays inside: the driver asks what it means"),
];

/// Methods and macros whose texts are not shown: reasons, and what a text is compared with.
const UNSEEN: [&str; 10] = [
    "expect",
    "contains",
    "starts_with",
    "ends_with",
    "strip_prefix",
    "strip_suffix",
    "split",
    "split_once",
    "rsplit_once",
    "trim_start_matches",
];

/// Lines and messages of a source. (Instructions of `asm!` are none: the macro's mark and its group
/// are passed over.)
fn collect(source: &str) -> Result<Vec<(usize, String)>, LexError> {
    let mut found = Vec::new();
    walk(source.parse()?, &mut found);
    Ok(found)
}

fn walk(stream: TokenStream, found: &mut Vec<(usize, String)>) {
    let tokens: Vec<TokenTree> = stream.into_iter().collect();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        at += 1;
        match token {
            TokenTree::Punct(p) if p.as_char() == '#' => at = attribute(&tokens, at, found),
            TokenTree::Ident(name) if UNSEEN.contains(&name.to_string().as_str()) => {
                at += usize::from(is_group(tokens.get(at), Delimiter::Parenthesis));
            }
            TokenTree::Ident(name) if name.to_string().ends_with("asm") => at += 2,
            TokenTree::Group(group) => walk(group.stream(), found),
            TokenTree::Literal(literal) if !is_pattern(tokens.get(at..).unwrap_or(&[])) => {
                let text = string(&literal.to_string()).map(|text| normal(&text)).filter(|text| is_prose(text));
                found.extend(text.map(|text| (literal.span().start().line, text)));
            }
            _ => {}
        }
    }
}

/// What follows an attribute that begins before `at`; messages of errors are taken from it, and
/// tests are passed over.
fn attribute(tokens: &[TokenTree], mut at: usize, found: &mut Vec<(usize, String)>) -> usize {
    at += usize::from(matches!(tokens.get(at), Some(TokenTree::Punct(p)) if p.as_char() == '!'));
    let Some(TokenTree::Group(group)) = tokens.get(at) else { return at };
    let text = group.stream().to_string().replace(' ', "");
    if text.starts_with("error(") {
        walk(group.stream(), found);
    }
    if text != "cfg(test)" {
        return at + 1;
    }
    let ends =
        |t: &TokenTree| is_group(Some(t), Delimiter::Brace) || matches!(t, TokenTree::Punct(p) if p.as_char() == ';');
    tokens[at..].iter().position(ends).map_or(tokens.len(), |n| at + n + 1)
}

fn is_group(token: Option<&TokenTree>, delimiter: Delimiter) -> bool {
    matches!(token, Some(TokenTree::Group(g)) if g.delimiter() == delimiter)
}

/// Whether what follows a literal says that it is a pattern of a `match`.
fn is_pattern(rest: &[TokenTree]) -> bool {
    let punct = |n: usize, c: char| matches!(rest.get(n), Some(TokenTree::Punct(p)) if p.as_char() == c);
    punct(0, '=') && punct(1, '>') || punct(0, '|')
}

/// What a string literal stands for; `None` for other literals. Only escapes that matter here.
fn string(literal: &str) -> Option<String> {
    if let Some(raw) = literal.strip_prefix('r') {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        return raw.get(hashes + 1..raw.len().checked_sub(hashes + 1)?).map(str::to_owned);
    }
    let mut rest = literal.strip_prefix('"')?.strip_suffix('"')?.chars().peekable();
    let mut text = String::new();
    while let Some(c) = rest.next() {
        match (c, if c == '\\' { rest.next() } else { None }) {
            (_, None) => text.push(c),
            (_, Some('n' | 'r' | 't')) => text.push(' '),
            // The line continues.
            (_, Some('\n')) => while rest.next_if(|c| c.is_whitespace()).is_some() {},
            (_, Some(c)) => text.push(c),
        }
    }
    Some(text)
}

/// As it is looked up: what is filled in is `…`, white space is one space, the speaker is
/// left out.
fn normal(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let (shown, len) = match placeholder(rest) {
            Some(len) => ('…', len),
            None if rest.starts_with("{{") || rest.starts_with("}}") => (c, 2),
            None => (c, c.len_utf8()),
        };
        if shown != '…' || !out.ends_with('…') {
            out.push(shown);
        }
        rest = &rest[len..];
    }
    let words: Vec<&str> = out.split_whitespace().collect();
    let line = words.join(" ");
    let line = line.strip_prefix("monarch: ").unwrap_or(&line);
    line.strip_prefix("warning: ").unwrap_or(line).to_owned()
}

/// Bytes of a placeholder at the beginning: `{}`, `{name}`, `{0:?}`, `{share:.1}`.
fn placeholder(text: &str) -> Option<usize> {
    let inner = text.strip_prefix('{')?.split_once('}')?.0;
    let (name, format) = inner.split_once(':').unwrap_or((inner, ""));
    let name_is_one = name.chars().all(|c| c.is_alphanumeric() || c == '_');
    (name_is_one && !format.contains(char::is_whitespace)).then_some(inner.len() + 2)
}

/// Whether a text is for people: two words or more, or a word beside something that is filled in.
fn is_prose(text: &str) -> bool {
    let is_word = |w: &&str| {
        let w = w.trim_matches(|c: char| "`'\"(),.:;!?".contains(c));
        w.len() > 1 && w.chars().all(|c| c.is_ascii_alphabetic() || "'-()".contains(c)) && !w.starts_with('-')
    };
    let words = text.split(' ').filter(is_word).count();
    words > 1 || words == 1 && text.contains(' ') && text.contains('…')
}

/// Rows of all tables of messages: line, messages, the other cells.
fn rows(document: &str) -> Vec<(usize, BTreeSet<String>, Vec<String>)> {
    let mut found = Vec::new();
    let (mut inside, mut before) = (false, "");
    for (number, line) in (1..).zip(document.lines()) {
        if line.starts_with("|---") {
            inside = before.starts_with("| Message");
        } else if !line.starts_with('|') {
            inside = false;
        } else if inside {
            let mut cells = cells(line).into_iter();
            found.push((number, spans(&cells.next().unwrap_or_default()), cells.collect()));
        }
        before = line;
    }
    found
}

fn cells(row: &str) -> Vec<String> {
    let row = row.trim().trim_start_matches('|').replace("\\|", "\0");
    let row = row.strip_suffix('|').unwrap_or(&row);
    row.split('|').map(|cell| cell.trim().replace('\0', "|")).collect()
}

/// Texts in backticks, as messages are looked up.
fn spans(cell: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut rest = cell;
    while let Some(start) = rest.find('`') {
        let ticks = rest[start..].len() - rest[start..].trim_start_matches('`').len();
        let fence = "`".repeat(ticks);
        let inner = &rest[start + ticks..];
        let Some(end) = inner.find(&fence) else { break };
        found.insert(normal(&inner[..end]));
        rest = &inner[end + ticks..];
    }
    found
}

/// Messages of the sources, with the places where they are made.
fn of_the_sources() -> BTreeMap<String, Vec<String>> {
    let mut found = BTreeMap::<String, Vec<String>>::new();
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut todo = vec![top.join("src")];
    for entry in std::fs::read_dir(top).expect("the repository").map(|e| e.expect("an entry")) {
        // (monarch-abi has assertions and assembly, and says nothing to users.)
        let (name, sources) = (entry.file_name(), entry.path().join("src"));
        if name.to_string_lossy().starts_with("monarch-") && name != "monarch-abi" && sources.is_dir() {
            todo.push(sources);
        }
    }
    while let Some(path) = todo.pop() {
        if path.is_dir() {
            todo.extend(std::fs::read_dir(&path).expect("a directory").map(|e| e.expect("an entry").path()));
            continue;
        }
        let name = path.strip_prefix(top).expect("below the top").display().to_string();
        if !name.ends_with(".rs")
            || name.contains("/tests")
            || name.ends_with("_tests.rs")
            || LABELS.contains(&name.as_str())
        {
            continue;
        }
        let source = std::fs::read_to_string(&path).expect("a source");
        for (line, text) in collect(&source).expect("Rust") {
            found.entry(text).or_default().push(format!("{name}:{line}"));
        }
    }
    found
}

#[test]
fn the_document_holds_every_message_and_no_other() {
    let document = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(DOCUMENT)).expect("document");
    let rows = rows(&document);
    let mut wrong: Vec<String> = Vec::new();
    for (line, messages, cells) in &rows {
        if messages.is_empty() || cells.is_empty() || cells.iter().any(String::is_empty) {
            wrong.push(format!("{DOCUMENT}:{line}: a row without a message, or with an empty cell"));
        }
    }
    let documented: BTreeMap<&String, usize> =
        rows.iter().flat_map(|(line, m, _)| m.iter().map(|m| (m, *line))).collect();
    let made = of_the_sources();
    let none: BTreeSet<&str> = NO_MESSAGES.iter().map(|(text, _)| *text).collect();
    for (text, places) in
        made.iter().filter(|(text, _)| !documented.contains_key(text) && !none.contains(text.as_str()))
    {
        wrong.push(format!("{}: not in {DOCUMENT}: {text}", places.join(", ")));
    }
    for (text, line) in documented.iter().filter(|(text, _)| !made.contains_key(**text)) {
        wrong.push(format!("{DOCUMENT}:{line}: no source says this: {text}"));
    }
    for text in none.iter().filter(|text| !made.contains_key(**text) || documented.contains_key(&(**text).to_owned())) {
        wrong.push(format!("the list of what is no message holds this in vain: {text}"));
    }
    assert!(wrong.is_empty(), "{} of {} messages:\n{}\n", wrong.len(), made.len(), wrong.join("\n"));
}

#[test]
fn messages_are_found_in_a_source_and_other_texts_are_not() {
    let source = r###"
        //! A comment "that says nothing to anybody".
        #[command(after_help = "help is not a message")]
        #[error("tier {name} ({path}): cannot {what}: {source:?}")]
        struct E(#[error(transparent)] io::Error);
        const HELP: &str = "name one: `--tier /x`, or:\n\
                            tiers: [{ path: /x }]";
        fn f(text: &str) {
            bail!("no {}{} here", 1, 2);
            tracing::warn!(error = %e, "the tier rests");
            say::warn(format_args!("monarch: warning: {share:.1} % {{of}} all\n"));
            f().expect("never shown to anybody");
            match text { "one of these" | "or of those" => r#"raw "text" shown"#, _ => "word" };
            text.starts_with("compared with this");
            open(b"bytes are no text", c"nor are these", "/a/path", "{k} {v}", "one");
        }
        #[cfg(test)]
        mod tests { fn f() { panic!("a test may say anything"); } }
        fn last() { "this comes last" }
    "###;
    let found = collect(source).expect("Rust");
    let expected = [
        (4, "tier … (…): cannot …: …"),
        (6, "name one: `--tier /x`, or: tiers: [{ path: /x }]"),
        (9, "no … here"),
        (10, "the tier rests"),
        (11, "… % {of} all"),
        (13, "raw \"text\" shown"),
        (19, "this comes last"),
    ];
    assert_eq!(found, expected.map(|(line, text)| (line, text.to_owned())));
    assert!(collect("fn f( {").is_err());
}

#[test]
fn messages_are_found_in_a_document() {
    let document = "\
| What | Why |\n|---|---|\n| `not a message` | x |\n\n\
| Message | Cause | Remedy |\n|---|---|---|\n| `a {name} b`, `` with `ticks` \\| and a bar `` | c | d |\n| none |  |\n";
    let found = rows(document);
    let texts: Vec<&String> = found[0].1.iter().collect();
    assert_eq!(texts, ["a … b", "with `ticks` | and a bar"]);
    assert_eq!((found[0].0, &found[0].2), (7, &vec!["c".to_owned(), "d".to_owned()]));
    assert!(found.len() == 2 && found[1].1.is_empty() && found[1].2 == [""]);
}
