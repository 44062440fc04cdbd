//! "Did you mean ...?"

/// The candidate that is nearest to a mistyped word, if one is near enough to be worth saying.
pub(super) fn nearest<'a>(word: &str, candidates: &[&'a str]) -> Option<&'a str> {
    let near = |candidate: &&&str| distance(word, candidate) <= (word.len().max(candidate.len()) / 3).max(1);
    candidates.iter().filter(near).min_by_key(|candidate| distance(word, candidate)).copied()
}

/// Levenshtein's edit distance (Soviet Physics Doklady 10, 1966), one row at a time.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let replace = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = replace.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typing_mistakes_are_found_and_other_words_are_not() {
        let keys = ["io_size", "max_inflight", "backoff"];
        assert_eq!(nearest("max_inflght", &keys), Some("max_inflight"));
        assert_eq!(nearest("iosize", &keys), Some("io_size"));
        assert_eq!(nearest("compression", &keys), None);
        assert_eq!((distance("kitten", "sitting"), distance("", "abc")), (3, 3));
    }
}
