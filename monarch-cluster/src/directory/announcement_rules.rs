//! What nodes announce when one comes or goes, so that the node that answers for a file now knows a
//! holder of it.
//!
//! * A node that comes up asks every other for the files that it now answers for
//!   ([`for_newcomer`]). The node that is asked counts it as up from that very moment. The newcomer
//!   reads and serves nothing before all have answered, or their time is over.
//! * A node that came up with copies announces them to the nodes that answer for them
//!   ([`announce_all`]).
//! * When a view changes otherwise, each node announces the copies whose answerer changed in its
//!   view ([`announcements`]).
//! * At the end of a fetch whose answerer does not know of the copy, it is announced
//!   ([`after_fetch`]).

use super::Members;
use super::members::ME;
use std::collections::BTreeMap;

/// Files of one index by the node that they are announced to, ascending when `held` is.
///
/// `held` are the files of the index that a node holds, or reads from the PFS and will keep: number
/// and hash of the path. Files that come from another node are not among them, for that node
/// announces them, nor are transient copies: either would hide the real holder.
pub type Telling = BTreeMap<u16, Vec<u32>>;

/// The files held that the newcomer answers for, now or without exceptions. `view` already counts
/// it as up.
pub fn for_newcomer(view: &Members, newcomer: u16, held: impl Iterator<Item = (u32, u64)>) -> Vec<u32> {
    held.filter(|(_, fp)| view.may_answer(newcomer, *fp)).map(|(id, _)| id).collect()
}

/// Every file held, by the node that answers for it.
pub fn announce_all(view: &Members, held: impl Iterator<Item = (u32, u64)>) -> Telling {
    tell(held.map(|(id, fp)| (view.answerer(fp), id)))
}

/// The files held whose answerer is another node now, by that node.
pub fn announcements(before: &Members, now: &Members, held: impl Iterator<Item = (u32, u64)>) -> Telling {
    tell(held.filter_map(|(id, fp)| Some(now.answerer(fp)).filter(|to| before.answerer(fp) != *to).map(|to| (to, id))))
}

/// The node that a copy is announced to that is complete now. `began` is [`Members::answerer_life`]
/// from when the fetch began. The node that answered for the file then had its part in the fetch
/// and knows a holder, unless the file was read from the PFS: it may have been passed over.
pub fn after_fetch(began: (u16, u64), from_pfs: bool, view: &Members, fp: u64) -> Option<u16> {
    let now = view.answerer_life(fp);
    (now.0 != ME && (from_pfs || now != began)).then_some(now.0)
}

fn tell(files: impl Iterator<Item = (u16, u32)>) -> Telling {
    let mut telling = Telling::new();
    for (to, id) in files.filter(|(to, _)| *to != ME) {
        telling.entry(to).or_default().push(id);
    }
    telling
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::NodeState;

    fn held() -> impl Iterator<Item = (u32, u64)> {
        (0..300_u32).map(|id| (id, u64::from(id).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    #[test]
    fn the_newcomer_hears_of_its_files_and_no_others_are_told() {
        let mut before = Members::new("a");
        before.add("b", NodeState::Up).unwrap();
        let c = before.add("c", NodeState::Expected).unwrap();
        let mut now = before.clone();
        now.set(c, NodeState::Up);
        let files = for_newcomer(&now, c, held());
        assert!((60..140).contains(&files.len()), "{}", files.len());
        assert_eq!(announcements(&before, &now, held()), Telling::from([(c, files.clone())]));
        assert_eq!(announce_all(&now, held())[&c], files);
        assert!(announcements(&now, &now, held()).is_empty());
        let fp = held().find(|(id, _)| *id == files[0]).unwrap().1;
        assert_eq!(after_fetch(now.answerer_life(fp), false, &now, fp), None);
        assert_eq!(after_fetch(now.answerer_life(fp), true, &now, fp), Some(c));
        assert_eq!(after_fetch(before.answerer_life(fp), false, &now, fp), Some(c));
        assert_eq!(after_fetch(now.answerer_life(fp), false, &before, fp).unwrap_or(ME), before.answerer(fp));
        let began = now.answerer_life(fp);
        now.locate(c, 2, None);
        assert_eq!(after_fetch(began, false, &now, fp), Some(c), "it came up anew");
        let back = announcements(&now, &before, held());
        assert!(!back.contains_key(&ME) && !back.contains_key(&c), "nobody tells itself, or one that went");
    }
}
