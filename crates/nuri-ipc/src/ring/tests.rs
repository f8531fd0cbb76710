//! The ring alone: every length round the end, nonsense from the producer, and all interleavings.

#[cfg(not(loom))]
mod plain {
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    use proptest::prelude::*;

    use super::super::*;

    #[derive(Clone)]
    struct Bytes(Rc<(RefCell<Vec<u8>>, Cell<u64>)>);

    impl Bytes {
        fn new(size: usize) -> Self {
            Self(Rc::new((RefCell::new(vec![0; size]), Cell::new(0))))
        }
    }

    impl Memory for Bytes {
        fn size(&self) -> u64 {
            self.0.0.borrow().len() as u64
        }
        fn load(&self, at: u64) -> u64 {
            let mut word = [0; 8];
            self.read(at, &mut word);
            u64::from_le_bytes(word)
        }
        fn publish(&self, at: u64, word: u64) {
            self.write(at, &word.to_le_bytes());
        }
        fn write(&self, at: u64, bytes: &[u8]) {
            self.0.0.borrow_mut()[at as usize..][..bytes.len()].copy_from_slice(bytes);
        }
        fn read(&self, at: u64, into: &mut [u8]) {
            into.copy_from_slice(&self.0.0.borrow()[at as usize..][..into.len()]);
        }
        fn head(&self) -> u64 {
            self.0.1.get()
        }
        fn set_head(&self, head: u64) {
            self.0.1.set(head);
        }
    }

    fn pop(ring: &mut Consumer<Bytes>) -> Option<(u64, Vec<u8>)> {
        let record = ring.peek().unwrap()?;
        let mut bytes = vec![0; record.len];
        ring.payload(&record, 0, &mut bytes);
        ring.advance(&record);
        Some((record.tag, bytes))
    }

    proptest! {
        #[test]
        fn what_goes_in_comes_out(
            lengths in prop::collection::vec(0..=INLINE, 1..200),
            pops in prop::collection::vec(0..4usize, 200),
        ) {
            let memory = Bytes::new(16384);
            let mut tx = Producer::new(memory.clone(), 99);
            let mut rx = Consumer::new(memory, 99);
            let mut model = std::collections::VecDeque::new();
            for (i, (len, pops)) in lengths.iter().zip(pops).enumerate() {
                let bytes: Vec<u8> = (0..*len).map(|b| (b + i) as u8).collect();
                if tx.push(Kind::Inline, i as u64, *len, |slot| slot.write(0, &bytes)) {
                    model.push_back((i as u64, bytes));
                }
                for _ in 0..pops {
                    prop_assert_eq!(pop(&mut rx), model.pop_front());
                }
            }
            while let Some(next) = model.pop_front() {
                prop_assert_eq!(pop(&mut rx), Some(next));
            }
            prop_assert_eq!(pop(&mut rx), None);
            prop_assert!(tx.push(Kind::Inline, 0, INLINE, |_| ()), "an empty ring has room");
        }

        #[test]
        fn nonsense_is_corrupt_or_a_checked_record(
            words in prop::collection::vec(any::<u64>(), 24),
        ) {
            let memory = Bytes::new(4096);
            for (i, word) in words.iter().enumerate() {
                memory.publish(i as u64 * 8, *word);
            }
            memory.publish(0, 5);
            let mut rx = Consumer::new(memory, 5);
            if let Ok(Some(record)) = rx.peek() {
                prop_assert!(record.len <= INLINE);
            }
        }
    }

    #[test]
    fn a_full_ring_says_so_and_a_lying_head_gives_no_room() {
        let memory = Bytes::new(4096);
        let mut tx = Producer::new(memory.clone(), 7);
        while tx.push(Kind::Inline, 0, INLINE, |_| ()) {}
        memory.set_head(1 << 40);
        assert!(!tx.push(Kind::Inline, 0, INLINE, |_| ()));
        let mut rx = Consumer::new(memory, 7);
        while pop(&mut rx).is_some() {}
        assert!(tx.push(Kind::Inline, 0, INLINE, |_| ()));
    }
}

#[cfg(loom)]
#[allow(unsafe_code)]
mod all_interleavings {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU64, Ordering};

    use super::super::*;

    const SIZE: u64 = 512;

    /// One granule: its stamp, and one cell for the rest, so that loom sees every race on it.
    struct Line {
        stamp: AtomicU64,
        rest: UnsafeCell<[u8; 56]>,
    }

    #[derive(Clone)]
    struct Model(Arc<(Vec<Line>, AtomicU64)>);

    impl Model {
        fn new() -> Self {
            let line = |_| Line { stamp: AtomicU64::new(0), rest: UnsafeCell::new([0; 56]) };
            Self(Arc::new(((0..SIZE / GRANULE).map(line).collect(), AtomicU64::new(0))))
        }
        fn line(&self, at: u64) -> (&Line, usize) {
            (&self.0.0[(at / GRANULE) as usize], (at % GRANULE - 8) as usize)
        }
    }

    impl Memory for Model {
        fn size(&self) -> u64 {
            SIZE
        }
        fn load(&self, at: u64) -> u64 {
            self.0.0[(at / GRANULE) as usize].stamp.load(Ordering::Acquire)
        }
        fn publish(&self, at: u64, word: u64) {
            self.0.0[(at / GRANULE) as usize].stamp.store(word, Ordering::Release);
        }
        fn write(&self, at: u64, bytes: &[u8]) {
            let (line, from) = self.line(at);
            line.rest.with_mut(|rest| {
                // SAFETY: loom checks that nobody else is here.
                unsafe { (&mut *rest)[from..][..bytes.len()].copy_from_slice(bytes) }
            });
        }
        fn read(&self, at: u64, into: &mut [u8]) {
            let (line, from) = self.line(at);
            // SAFETY: as above.
            line.rest.with(|rest| into.copy_from_slice(unsafe { &(&*rest)[from..][..into.len()] }));
        }
        fn head(&self) -> u64 {
            self.0.1.load(Ordering::Acquire)
        }
        fn set_head(&self, head: u64) {
            self.0.1.store(head, Ordering::Release);
        }
    }

    /// Ten records through eight granules: the ring goes round while both ends run.
    #[test]
    fn round_the_ring() {
        loom::model(|| {
            let memory = Model::new();
            let mut tx = Producer::new(memory.clone(), 40);
            for i in 0..7u64 {
                assert!(tx.push(Kind::Inline, i, 8, |slot| slot.write(0, &i.to_le_bytes())));
            }
            let writer = loom::thread::spawn(move || {
                for i in 7..10u64 {
                    while !tx.push(Kind::Inline, i, 8, |slot| slot.write(0, &i.to_le_bytes())) {
                        loom::thread::yield_now();
                    }
                }
            });
            let mut rx = Consumer::new(memory, 40);
            for i in 0..10u64 {
                let record = loop {
                    match rx.peek() {
                        Ok(Some(record)) => break record,
                        Ok(None) => loom::thread::yield_now(),
                        Err(Corrupt) => panic!("corrupt"),
                    }
                };
                let mut bytes = [0; 8];
                rx.payload(&record, 0, &mut bytes);
                assert_eq!((record.tag, u64::from_le_bytes(bytes)), (i, i));
                rx.advance(&record);
            }
            writer.join().unwrap();
        });
    }
}
