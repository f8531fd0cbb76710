//! What has to leave an inode before its lease is given back, as an ordered list.

use std::sync::Arc;

use crate::inode::Inode;

/// Something that holds bytes, names or operations under a lease.
pub(crate) trait Drain {
    /// Makes what it holds of the inode leave. False: not all of it could.
    fn drain(&self, inode: &Arc<Inode>) -> bool;
}

/// Drains all parts in their order, whatever one part answers. `false` where one part could not
/// drain.
pub(crate) fn drain_all(drains: &[&dyn Drain], inode: &Arc<Inode>) -> bool {
    let mut is_drained = true;
    for drain in drains {
        is_drained &= drain.drain(inode);
    }
    is_drained
}

#[cfg(test)]
mod tests {
    use nuri_proto::id::Ino;
    use parking_lot::Mutex;

    use super::*;

    struct Noted<'l>(&'l Mutex<Vec<u8>>, u8, bool);

    impl Drain for Noted<'_> {
        fn drain(&self, _: &Arc<Inode>) -> bool {
            self.0.lock().push(self.1);
            self.2
        }
    }

    #[test]
    fn each_is_drained_in_its_order_whatever_the_one_before_says() {
        let (order, inode) = (Mutex::default(), Arc::new(Inode::new(Ino(7), 0)));
        let drains = [true, false, true].map(|can| {
            let number = u8::from(can);
            Noted(&order, number, can)
        });
        let list: Vec<&dyn Drain> = drains.iter().map(|drain| drain as &dyn Drain).collect();
        assert!(!drain_all(&list, &inode));
        assert_eq!(*order.lock(), [1, 0, 1]);
        assert!(drain_all(&list[..1], &inode));
    }
}
