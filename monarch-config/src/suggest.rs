//! "Did you mean ...?": the known word that is nearest to a mistyped one.

use strsim::levenshtein;

/// The candidate that is nearest to a mistyped word, if one is near enough to be worth saying.
pub(super) fn nearest<'a>(word: &str, candidates: &[&'a str]) -> Option<&'a str> {
    let near = |candidate: &&&str| levenshtein(word, candidate) <= (word.len().max(candidate.len()) / 3).max(1);
    candidates.iter().filter(near).min_by_key(|candidate| levenshtein(word, candidate)).copied()
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
        assert_eq!((levenshtein("kitten", "sitting"), levenshtein("", "abc")), (3, 3));
    }
}
