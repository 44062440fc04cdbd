//! Which names are not staged: patterns as of glob(7), and temporary files that raw system calls
//! rename.

/// Whether a file name fits a pattern: `*` any characters, `?` one, `[abc]`, `[a-z]`, `[!a]` one of
/// a set, `\` the next character as it is. A leading dot is a character like others.
#[must_use]
pub fn fits(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (pattern, name);
    // Where to go on after a mismatch: behind the last star, one more character taken by it.
    let mut retry: Option<(&[u8], &[u8])> = None;
    loop {
        if let Some((b'*', rest)) = p.split_first() {
            retry = Some((rest, n));
            p = rest;
            continue;
        }
        if let (Some((c, rest_of_name)), Some(rest)) = (n.split_first(), n.first().and_then(|&c| one(p, c))) {
            let _ = c;
            (p, n) = (rest, rest_of_name);
            continue;
        }
        if p.is_empty() && n.is_empty() {
            return true;
        }
        match retry {
            Some((rest, [_, more @ ..])) => {
                retry = Some((rest, more));
                (p, n) = (rest, more);
            }
            _ => return false,
        }
    }
}

/// What follows the first element of a pattern, if a character fits that.
fn one(pattern: &[u8], c: u8) -> Option<&[u8]> {
    let (first, rest) = pattern.split_first()?;
    match first {
        b'?' => Some(rest),
        b'\\' => match rest.split_first() {
            Some((escaped, rest)) => (*escaped == c).then_some(rest),
            None => (c == b'\\').then_some(rest),
        },
        b'[' => match set(rest, c) {
            Some((fits, rest)) => fits.then_some(rest),
            // Without its end it is a character.
            None => (c == b'[').then_some(rest),
        },
        _ => (*first == c).then_some(rest),
    }
}

/// Whether a set (behind its `[`) holds a character, and what follows it; `None` without an end.
fn set(text: &[u8], c: u8) -> Option<(bool, &[u8])> {
    let (negated, mut rest) = match text.split_first() {
        Some((b'!' | b'^', rest)) => (true, rest),
        _ => (false, text),
    };
    let mut found = false;
    let mut is_first = true;
    loop {
        rest = match rest {
            [b']', rest @ ..] if !is_first => return Some((found != negated, rest)),
            [from, b'-', to, rest @ ..] if *to != b']' => {
                found |= (*from..=*to).contains(&c);
                rest
            }
            [single, rest @ ..] => {
                found |= *single == c;
                rest
            }
            [] => return None,
        };
        is_first = false;
    }
}

/// Whether a file created with these flags looks like the temporary file of a library that renames
/// it by a raw system call (Rust's `tempfile`, as in safetensors 0.8): `.tmp` and six characters,
/// made exclusively, for its owner only.
#[must_use]
pub fn is_raw_temporary(name: &[u8], exclusive: bool, mode: u32) -> bool {
    exclusive && mode & 0o777 == 0o600 && name.len() == 10 && name.starts_with(b".tmp")
}

/// A name without the number that rotation leaves behind it: `train.log` for `train.log.3`.
#[must_use]
pub fn without_rotation(name: &[u8]) -> &[u8] {
    let dot = name.iter().rposition(|&c| c == b'.');
    let split = dot.and_then(|dot| Some((name.get(..dot)?, name.get(dot + 1..)?)));
    match split {
        Some((front, number)) if !number.is_empty() && number.iter().all(u8::is_ascii_digit) => front,
        _ => name,
    }
}

/// Fewest characters that are taken for a random part of a name that nothing sets off.
const RANDOM_CHARS: usize = 6;

/// Whether a path looks temporary beside the one that a file gets by a rename, so that readers do
/// not look for it: the new name is a part of it, set off or beside random characters, or it says
/// so.
#[must_use]
pub fn is_temporary(old: &[u8], new: &[u8]) -> bool {
    let last = |path: &[u8]| path.iter().rposition(|&c| c == b'/').map_or(0, |at| at + 1);
    let begins = |path: &[u8], word: &[u8]| path.get(..word.len()).is_some_and(|part| part.eq_ignore_ascii_case(word));
    let has =
        |path: &[u8], word: &[u8]| (0..path.len()).any(|at| path.get(at..).is_some_and(|rest| begins(rest, word)));
    let (old_name, new_name) = (old.get(last(old)..).unwrap_or_default(), new.get(last(new)..).unwrap_or_default());
    let is_end = |c: Option<&u8>| c.is_none_or(|c| !c.is_ascii_alphanumeric());
    let is_part_at = |at: usize| {
        let behind = at + new_name.len();
        let is_random = |chars: usize| chars >= RANDOM_CHARS;
        let is_set_off = is_end(at.checked_sub(1).and_then(|before| old_name.get(before))) || is_random(at);
        let ends = is_end(old_name.get(behind)) || is_random(old_name.len().saturating_sub(behind));
        is_set_off && ends && old_name.get(at..).is_some_and(|rest| begins(rest, new_name))
    };
    let is_longer = !new_name.is_empty() && old_name.len() > new_name.len() && (0..old_name.len()).any(is_part_at);
    let words: [&[u8]; 4] = [b"tmp", b"temp", b"partial", b"incomplete"];
    is_longer || words.iter().any(|word| has(old, word) && !has(new, word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotated_files_have_the_name_without_the_number() {
        for (name, front) in [
            ("train.log.1", "train.log"),
            ("a.log.2026", "a.log"),
            ("a.log", "a.log"),
            ("a.1x", "a.1x"),
            ("a.", "a."),
            (".1", ""),
        ] {
            assert_eq!(without_rotation(name.as_bytes()), front.as_bytes(), "{name}");
        }
    }

    #[test]
    fn a_name_is_temporary_if_the_next_one_is_a_part_of_it_or_if_it_says_so() {
        let temporary = [
            ("model.pt.tmp", "model.pt"),
            (".model.pt.a1B2", "model.pt"),
            ("model.ptk3v9_x2q", "model.pt"),
            ("a1b2c3model.pt", "model.pt"),
            ("c/0.0.3f2a.partial", "c/0.0"),
            ("run/TMP123", "run/model.pt"),
            ("run/ckpt_temp/part-0", "run/ckpt.data"),
        ];
        temporary.iter().for_each(|(old, new)| assert!(is_temporary(old.as_bytes(), new.as_bytes()), "{old}"));
        let lasting = [
            ("last.ckpt", "last-v1.ckpt"),
            ("model.pt", "model.pt.bak"),
            ("step10", "step1"),
            ("step10.d", "p1"),
            ("best_model.pt1", "model.pt"),
            ("ckpt.1", "ckpt.2"),
            ("a/model.pt", "b/model.pt"),
            ("tmp/a", "tmp/b"),
            ("a", "b"),
        ];
        lasting.iter().for_each(|(old, new)| assert!(!is_temporary(old.as_bytes(), new.as_bytes()), "{old}"));
    }

    #[test]
    fn patterns_fit_as_those_of_the_shell() {
        let yes: [(&[u8], &[u8]); 12] = [
            (b"*.log", b"train.log"),
            (b"*.log", b".log"),
            (b"events.out.tfevents.*", b"events.out.tfevents.123.host"),
            (b"*.db*", b"study.db-journal"),
            (b"*a*b*c", b"xxaybzbc"),
            (b"?.txt", b"1.txt"),
            (b"[a-c]x", b"bx"),
            (b"[!a-c]x", b"dx"),
            (b"[]]", b"]"),
            (b"\\*", b"*"),
            (b"", b""),
            (b"*", b""),
        ];
        for (pattern, name) in yes {
            assert!(fits(pattern, name), "{pattern:?} {name:?}");
        }
        let no: [(&[u8], &[u8]); 8] = [
            (b"*.log", b"train.logs"),
            (b"*.log", b"log"),
            (b"?", b""),
            (b"[a-c]x", b"dx"),
            (b"[!a-c]x", b"ax"),
            (b"\\*", b"a"),
            (b"", b"a"),
            (b"*a*b", b"ab.c"),
        ];
        for (pattern, name) in no {
            assert!(!fits(pattern, name), "{pattern:?} {name:?}");
        }
    }

    #[test]
    fn only_exclusive_private_temporaries_are_those_of_raw_calls() {
        assert!(is_raw_temporary(b".tmpAbC123", true, 0o600));
        assert!(!is_raw_temporary(b".tmpAbC123", false, 0o600));
        assert!(!is_raw_temporary(b".tmpAbC123", true, 0o644));
        assert!(!is_raw_temporary(b".tmpAbC12", true, 0o600));
        assert!(!is_raw_temporary(b"xtmpAbC123", true, 0o600));
    }
}
