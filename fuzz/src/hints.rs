//! Files of hints, as the agent and its policies read them.

use super::input::Input;
use monarch_abi::hint::{HEADER, Header, Kind, MAGIC, files};
use monarch_policies::FileKey;
use monarch_policies::hints::{Hints, Priority, Purpose};

/// Several files, each after its length; the target adds the magic number.
pub(crate) fn hints(bytes: &[u8]) {
    let mut input = Input(bytes);
    let mut known = Hints::default();
    while !input.is_empty() {
        let mut file = MAGIC.to_le_bytes().to_vec();
        file.extend(input.part());
        let Some(header) = Header::of(&file) else { continue };
        assert!(file.len() >= HEADER && Header::of(&header.bytes()) == Some(header));
        let _ = header.tag();
        let keys: Vec<FileKey> = files(&file).map(FileKey).collect();
        assert_eq!(keys.len(), (file.len() - HEADER) / 8);
        heed(&mut known, header, keys);
    }
}

fn heed(known: &mut Hints, header: Header, keys: Vec<FileKey>) {
    match header.kind {
        Kind::Order => known.announce(header.process.into(), keys),
        Kind::Prefetch => keys.iter().for_each(|key| known.accessed(*key)),
        Kind::Priority => {
            let priority = if header.value < 0 { Priority::Never } else { Priority::High };
            keys.iter().for_each(|key| known.prioritise(*key, priority));
        }
        Kind::EpochBegin => known.epoch_began(|index| u64::from(index) & header.ms == 0),
        Kind::EpochEnd => known.forget_index(header.number),
    }
    for purpose in [Purpose::Fetch, Purpose::Decode] {
        for key in (0..4).map_while(|_| known.upcoming(purpose)).collect::<Vec<_>>() {
            let _ = (known.next_use(key), known.priority(key));
        }
    }
    let streams: Vec<u64> = known.streams().collect();
    for stream in streams {
        assert!(known.order(stream).is_some_and(|(order, at)| at as usize <= order.len()));
    }
}
