//! Which receive takes which message: MPI's order, with wildcards. Pure.
//!
//! Receives are taken in the order in which they were posted, and messages in the order in which
//! they came. So messages of one sender with one tag never overtake each other. Both sides keep all
//! entries in one list by age. To find one quickly, each entry is also in a bucket by sender and
//! tag. Receives with a wildcard are in a bucket of their own. The oldest receive is tried first:
//! nearly always it is the right one, and then no bucket is looked at.

mod list;

pub(crate) use list::Key;
use list::{Lists, WILD, bucket};

/// What a receive accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selector {
    source: Option<u32>,
    tag: u64,
    mask: u64,
}

impl Selector {
    /// One sender, one tag.
    pub const fn exact(source: u32, tag: u64) -> Self {
        Self { source: Some(source), tag, mask: u64::MAX }
    }

    /// Any sender, any tag.
    pub const ANY: Self = Self { source: None, tag: 0, mask: 0 };

    /// The same tag of any sender.
    pub const fn any_source(self) -> Self {
        Self { source: None, ..self }
    }

    /// Any tag of the same sender.
    pub const fn any_tag(self) -> Self {
        self.masked(0)
    }

    /// Only those bits of the tag that are set in `mask` must agree.
    pub const fn masked(self, mask: u64) -> Self {
        Self { mask, ..self }
    }

    /// The one sender, if there is one.
    pub const fn source(self) -> Option<u32> {
        self.source
    }

    /// Whether it takes this message.
    #[inline]
    pub const fn accepts(self, source: u32, tag: u64) -> bool {
        let from = match self.source {
            Some(wanted) => wanted == source,
            None => true,
        };
        from && (self.tag ^ tag) & self.mask == 0
    }

    /// Its bucket; receives that may take messages of several are wild.
    #[inline]
    fn bucket(self) -> u16 {
        match self.source {
            Some(source) if self.mask == u64::MAX => bucket(source, self.tag),
            _ => WILD,
        }
    }
}

/// A message as it came.
#[derive(Clone, Copy, Debug)]
struct Arrived<M> {
    source: u32,
    tag: u64,
    message: M,
}

/// What became of a new receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Posted<M> {
    /// A message was there.
    Found(M),
    /// It waits under this key.
    Waits(Key),
}

/// Receives that wait for messages (`R` names one) and messages that wait for receives (`M`).
#[derive(Debug)]
pub(crate) struct Matching<R, M> {
    receives: Lists<(Selector, R)>,
    messages: Lists<Arrived<M>>,
}

impl<R: Copy, M: Copy> Matching<R, M> {
    /// Nothing waits.
    pub(crate) fn new() -> Self {
        Self { receives: Lists::new(), messages: Lists::new() }
    }

    /// Whether nothing waits, so that the next message of a link may go to the next receive.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.receives.oldest().is_none() && self.messages.oldest().is_none()
    }

    /// Takes the oldest message for a new receive, or lets the receive wait.
    #[inline]
    pub(crate) fn post(&mut self, selector: Selector, receive: R) -> Posted<M> {
        if let Some(key) = self.find_message(selector)
            && let Some(arrived) = self.messages.remove(key)
        {
            return Posted::Found(arrived.message);
        }
        Posted::Waits(self.receives.push(selector.bucket(), (selector, receive)))
    }

    /// Takes the oldest receive for a new message.
    #[inline]
    pub(crate) fn take(&mut self, source: u32, tag: u64) -> Option<R> {
        let key = self.find_receive(source, tag)?;
        self.receives.remove(key).map(|(_, receive)| receive)
    }

    /// Lets a message wait for which no receive was there.
    pub(crate) fn keep(&mut self, source: u32, tag: u64, message: M) -> Key {
        self.messages.push(bucket(source, tag), Arrived { source, tag, message })
    }

    /// The message a receive would take, left where it is.
    pub(crate) fn probe(&self, selector: Selector) -> Option<(u32, u64, M)> {
        let arrived = self.messages.get(self.find_message(selector)?)?;
        Some((arrived.source, arrived.tag, arrived.message))
    }

    /// Takes a waiting receive back.
    pub(crate) fn cancel(&mut self, key: Key) -> Option<R> {
        self.receives.remove(key).map(|(_, receive)| receive)
    }

    /// Takes a waiting message out: its sender died before it was whole.
    pub(crate) fn lose(&mut self, key: Key) -> Option<M> {
        self.messages.remove(key).map(|arrived| arrived.message)
    }

    /// Takes all receives back that only this sender could have served.
    pub(crate) fn desert(&mut self, source: u32) -> Vec<R> {
        self.take_back(|selector| selector.source == Some(source))
    }

    /// Takes all receives back: there is nobody left to send.
    pub(crate) fn desert_all(&mut self) -> Vec<R> {
        self.take_back(|_| true)
    }

    fn take_back(&mut self, which: impl Fn(Selector) -> bool) -> Vec<R> {
        let keys: Vec<Key> =
            self.receives.by_age().filter(|(_, (s, _))| which(*s)).map(|(k, _)| k).collect();
        keys.into_iter().filter_map(|key| self.cancel(key)).collect()
    }

    #[inline]
    fn find_receive(&self, source: u32, tag: u64) -> Option<Key> {
        let fits = |(selector, _): &(Selector, R)| selector.accepts(source, tag);
        match self.receives.oldest() {
            None => return None,
            Some((key, receive)) if fits(receive) => return Some(key),
            Some(_) => (),
        }
        let exact = self.receives.in_bucket(bucket(source, tag)).find(|(_, r)| fits(r));
        let wild = self.receives.in_bucket(WILD).find(|(_, r)| fits(r));
        match (exact, wild) {
            (Some((e, _)), Some((w, _))) => Some(if e.age() < w.age() { e } else { w }),
            (found, None) | (None, found) => found.map(|(key, _)| key),
        }
    }

    #[inline]
    fn find_message(&self, selector: Selector) -> Option<Key> {
        let fits = |a: &Arrived<M>| selector.accepts(a.source, a.tag);
        match self.messages.oldest() {
            None => return None,
            Some((key, message)) if fits(message) => return Some(key),
            Some(_) => (),
        }
        match selector.bucket() {
            WILD => self.messages.by_age().find(|(_, a)| fits(a)).map(|(key, _)| key),
            one => self.messages.in_bucket(one).find(|(_, a)| fits(a)).map(|(key, _)| key),
        }
    }
}

#[cfg(test)]
mod tests;
