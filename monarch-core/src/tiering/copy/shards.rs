//! Names of the parts of one checkpoint: `model-00002-of-00004.safetensors`.

/// The path of the part that follows, where a path is that of a part and not of the last one.
pub(super) fn next_shard(path: &[u8]) -> Option<Vec<u8>> {
    let name = path.iter().rposition(|&c| c == b'/').map_or(0, |at| at + 1);
    let of = name + path.get(name..)?.windows(4).rposition(|w| w == b"-of-")?;
    let digits = path[name..of].iter().rev().take_while(|c| c.is_ascii_digit()).count();
    let total_digits = path[of + 4..].iter().take_while(|c| c.is_ascii_digit()).count();
    let number = |digits: &[u8]| std::str::from_utf8(digits).ok()?.parse::<u64>().ok();
    let (this, total) = (number(&path[of - digits..of])?, number(&path[of + 4..of + 4 + total_digits])?);
    let next = format!("{:0digits$}", this.checked_add(1).filter(|next| *next <= total)?);
    Some([&path[..of - digits], next.as_bytes(), &path[of..]].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_followed_by_the_next_and_the_last_by_none() {
        let next = |path: &str| next_shard(path.as_bytes()).map(|next| String::from_utf8(next).unwrap());
        let some = |path: &str| Some(path.to_owned());
        assert_eq!(next("m/model-00002-of-00004.safetensors"), some("m/model-00003-of-00004.safetensors"));
        assert_eq!(next("a-of-b/model-9-of-12.bin"), some("a-of-b/model-10-of-12.bin"));
        assert_eq!(next("model-00009-of-00010.gguf"), some("model-00010-of-00010.gguf"));
        for last in ["model-00004-of-00004.safetensors", "a-of-b", "-of-", "1-of-", "-of-3", "x/y", "", "one-of-2"] {
            assert_eq!(next(last), None, "{last}");
        }
        assert_eq!(next("m-99999999999999999999-of-5"), None);
    }
}
