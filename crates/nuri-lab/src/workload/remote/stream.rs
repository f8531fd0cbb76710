//! Requests that are sent ahead on one connection, as a kernel's page cache would send them.
//!
//! Bytes that are read in order are asked for beforehand. Bytes that are written in order go in
//! larger pieces, and the writes are answered later. The bytes under way are bounded by [`WINDOW`].

use std::collections::{BTreeMap, VecDeque};
use std::io::{Error, ErrorKind, Result as IoResult};
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, MutexGuard};

use super::unanswered;
use crate::workload::opened::Opened;

/// Bytes that are under way, each way.
const WINDOW: u64 = 1 << 20;
/// Bytes in a row that go together.
const PIECE: u64 = 256 << 10;

/// Numbers of requests are below.
pub(super) const NUMBERS: u32 = 1 << 30;

/// What is asked of a server.
pub(super) enum Request<'a> {
    Read { at: u64, len: u32 },
    Write { at: u64, data: &'a [u8] },
    Sync,
}

/// Sends requests.
pub(super) trait Ask: Send {
    /// The answer has the same number.
    fn ask(&mut self, number: u32, request: &Request) -> IoResult<()>;
    /// Bytes of one request at most.
    fn most(&self) -> usize;
    /// Ends the connection, and with it whoever hears.
    fn end(&mut self);
}

/// What a server answers.
pub(super) enum Answer {
    /// The bytes that were asked for, or fewer.
    Read(Vec<u8>),
    /// So many bytes of what was sent, or all where the server does not say.
    Wrote(Option<u64>),
}

/// Receives answers, in whatever order they come.
pub(super) trait Hear: Send + 'static {
    /// The number of a request, and how it ended.
    fn hear(&mut self) -> Heard;
}

pub(super) type Heard = IoResult<(u32, IoResult<Answer>)>;

/// A file or device at a server, from `base` on.
pub(super) struct Stream<A: Ask> {
    base: u64,
    end: u64,
    state: Mutex<State<A>>,
}

struct State<A> {
    ask: A,
    answers: Receiver<Heard>,
    number: u32,
    /// What was written and is not sent yet.
    held: Held,
    /// Writes without an answer, by number: where and how many bytes.
    writes: BTreeMap<u32, (u64, u64)>,
    /// What is read ahead, without gaps.
    pieces: VecDeque<Piece>,
    /// Where the next read begins if it goes on.
    next: u64,
    /// Of a write that failed: the next sync tells it.
    failed: Option<Error>,
}

/// Bytes in a row.
#[derive(Default)]
struct Held {
    at: u64,
    data: Vec<u8>,
}

/// Bytes that were asked for.
struct Piece {
    at: u64,
    len: u64,
    number: u32,
    outcome: Option<IoResult<Answer>>,
}

impl Piece {
    fn crosses(&self, at: u64, len: u64) -> bool {
        self.at < at + len && at < self.at + self.len
    }

    /// Takes over what is written, where it has been read.
    fn patch(&mut self, at: u64, data: &[u8]) {
        let Some(Ok(Answer::Read(own))) = &mut self.outcome else { return };
        let from = at.max(self.at);
        let to = (at + data.len() as u64).min(self.at + own.len() as u64);
        if from < to {
            let part = &data[(from - at) as usize..(to - at) as usize];
            own[(from - self.at) as usize..(to - self.at) as usize].copy_from_slice(part);
        }
    }
}

impl<A: Ask> Stream<A> {
    /// Its bytes are those from `base` to `end` of what the server has.
    pub(super) fn new(ask: A, mut hear: impl Hear, (base, end): (u64, u64)) -> Stream<A> {
        let (send, answers) = channel();
        std::thread::spawn(move || {
            loop {
                let answer = hear.hear();
                let is_last = answer.is_err();
                if send.send(answer).is_err() || is_last {
                    break;
                }
            }
        });
        let state = State {
            ask,
            answers,
            number: 0,
            held: Held::default(),
            writes: BTreeMap::new(),
            pieces: VecDeque::new(),
            next: u64::MAX,
            failed: None,
        };
        Stream { base, end, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State<A>> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl<A: Ask> State<A> {
    fn ask(&mut self, request: &Request) -> IoResult<u32> {
        self.number = (self.number + 1) % NUMBERS;
        self.ask.ask(self.number, request).map_err(unanswered)?;
        Ok(self.number)
    }

    /// Takes the next answer, whatever it belongs to. Returns that of what is no read and no write;
    /// also of reads that nobody waits for any more.
    fn take(&mut self) -> IoResult<Option<(u32, IoResult<Answer>)>> {
        let gone = |_| Error::new(ErrorKind::BrokenPipe, "the server ended the connection");
        let (number, outcome) = self.answers.recv().map_err(gone)?.map_err(unanswered)?;
        if let Some((_, len)) = self.writes.remove(&number) {
            let failed = match outcome {
                Ok(Answer::Wrote(Some(bytes))) if bytes < len => {
                    Some(Error::new(ErrorKind::WriteZero, "the server wrote a part"))
                }
                outcome => outcome.err(),
            };
            self.failed = failed.or(self.failed.take());
            return Ok(None);
        }
        let Some(piece) = self.pieces.iter_mut().find(|piece| piece.number == number) else {
            return Ok(Some((number, outcome)));
        };
        piece.outcome = Some(outcome);
        Ok(None)
    }

    /// Writes under way that touch these bytes.
    fn crosses(&self, at: u64, len: u64) -> bool {
        self.writes.values().any(|(from, bytes)| *from < at + len && at < from + bytes)
    }

    fn write(&mut self, at: u64, data: &[u8]) -> IoResult<()> {
        let len = data.len() as u64;
        while self.pieces.iter().any(|p| p.crosses(at, len) && p.outcome.is_none()) {
            self.take()?;
        }
        self.pieces.iter_mut().for_each(|piece| piece.patch(at, data));
        let held = &self.held;
        let goes_on = held.at + held.data.len() as u64 == at;
        if !goes_on || held.data.len() as u64 + len > PIECE {
            self.send()?;
        }
        if len >= PIECE {
            return self.send_these(at, data);
        }
        if self.held.data.is_empty() {
            self.held.at = at;
        }
        self.held.data.extend_from_slice(data);
        Ok(())
    }

    /// Sends what is held.
    fn send(&mut self) -> IoResult<()> {
        let Held { at, mut data } = std::mem::take(&mut self.held);
        if !data.is_empty() {
            self.send_these(at, &data)?;
        }
        data.clear();
        self.held.data = data;
        Ok(())
    }

    fn send_these(&mut self, at: u64, data: &[u8]) -> IoResult<()> {
        let len = data.len() as u64;
        while self.crosses(at, len) || self.under_way() + len > WINDOW.max(len) {
            self.take()?;
        }
        let number = self.ask(&Request::Write { at, data })?;
        self.writes.insert(number, (at, len));
        Ok(())
    }

    fn under_way(&self) -> u64 {
        self.writes.values().map(|(_, len)| len).sum()
    }

    /// Bytes from there, before `end`; fewer at the end of a piece.
    fn read(&mut self, (at, end): (u64, u64), out: &mut [u8]) -> IoResult<usize> {
        self.send()?;
        let is_row = at == self.next;
        self.pieces.retain(|piece| piece.at + piece.len > at);
        if self.pieces.front().is_some_and(|piece| piece.at > at) {
            self.pieces.clear();
        }
        let len = out.len() as u64;
        let ahead = if is_row { WINDOW.max(len) } else { len };
        let mut place = self.pieces.back().map_or(at, |piece| piece.at + piece.len);
        while place < end.min(at + ahead) {
            let most = if is_row { len.max(PIECE) } else { len };
            let bytes = most.min(self.ask.most() as u64).min(end - place);
            while self.crosses(place, bytes) {
                self.take()?;
            }
            let number = self.ask(&Request::Read { at: place, len: bytes as u32 })?;
            self.pieces.push_back(Piece { at: place, len: bytes, number, outcome: None });
            place += bytes;
        }
        while self.pieces.front().is_some_and(|piece| piece.outcome.is_none()) {
            self.take()?;
        }
        let copied = self.copy(at, out)?;
        self.next = at + copied as u64;
        Ok(copied)
    }

    /// From the first piece.
    fn copy(&mut self, at: u64, out: &mut [u8]) -> IoResult<usize> {
        let Some(piece) = self.pieces.front_mut() else { return Ok(0) };
        match &piece.outcome {
            Some(Ok(Answer::Read(data))) => {
                let data = data.get((at - piece.at) as usize..).unwrap_or_default();
                let len = data.len().min(out.len());
                out[..len].copy_from_slice(&data[..len]);
                Ok(len)
            }
            Some(Ok(Answer::Wrote(_))) | None => Err(Error::other("an answer without bytes")),
            Some(Err(_)) => match self.pieces.pop_front().and_then(|piece| piece.outcome) {
                Some(Err(error)) => Err(error),
                _ => Ok(0),
            },
        }
    }

    fn sync(&mut self) -> IoResult<()> {
        self.send()?;
        while !self.writes.is_empty() {
            self.take()?;
        }
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let number = self.ask(&Request::Sync)?;
        loop {
            match self.take()? {
                Some((answered, outcome)) if answered == number => return outcome.map(drop),
                _ => {}
            }
        }
    }
}

impl<A: Ask> FileExt for Stream<A> {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> IoResult<usize> {
        let mut state = self.state();
        let len = buf.len().min(state.ask.most());
        state.read((self.base + offset, self.end), &mut buf[..len])
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> IoResult<usize> {
        let mut state = self.state();
        let data = &buf[..buf.len().min(state.ask.most())];
        let at = self.base + offset;
        if at + data.len() as u64 > self.end {
            return Err(Error::new(ErrorKind::StorageFull, "behind the end of the server's bytes"));
        }
        state.write(at, data)?;
        Ok(data.len())
    }
}

impl<A: Ask> Opened for Stream<A> {
    fn sync(&self) -> IoResult<()> {
        self.state().sync()
    }

    fn close(self: Box<Self>) -> IoResult<()> {
        let mut state = self.state();
        state.send()?;
        while !state.writes.is_empty() {
            state.take()?;
        }
        state.failed.take().map_or(Ok(()), Err)
    }
}

impl<A: Ask> Drop for Stream<A> {
    fn drop(&mut self) {
        self.state().ask.end();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::Sender;

    use super::*;

    /// A server in memory that answers the newest request first, as soon as there are so many.
    struct Fake {
        bytes: Arc<Mutex<Vec<u8>>>,
        waiting: Vec<Heard>,
        most_waiting: Arc<Mutex<usize>>,
        patience: usize,
        answer: Sender<Heard>,
    }

    struct Answers(Receiver<Heard>);

    impl Hear for Answers {
        fn hear(&mut self) -> Heard {
            self.0.recv().map_err(|_| Error::other("gone"))?
        }
    }

    impl Ask for Fake {
        fn ask(&mut self, number: u32, request: &Request) -> IoResult<()> {
            let mut bytes = self.bytes.lock().unwrap();
            let range = |at: u64, len: usize| at as usize..at as usize + len;
            let data = match request {
                Request::Read { at, len } => {
                    Ok(Answer::Read(bytes[range(*at, *len as usize)].to_vec()))
                }
                Request::Write { at: 13, .. } => Err(Error::other("unlucky")),
                Request::Write { at, data } => {
                    bytes[range(*at, data.len())].copy_from_slice(data);
                    Ok(Answer::Wrote(Some(data.len() as u64)))
                }
                Request::Sync => Ok(Answer::Wrote(None)),
            };
            self.waiting.push(Ok((number, data)));
            let mut most = self.most_waiting.lock().unwrap();
            *most = (*most).max(self.waiting.len());
            if self.waiting.len() >= self.patience || matches!(request, Request::Sync) {
                while let Some(answer) = self.waiting.pop() {
                    let _ = self.answer.send(answer);
                }
            }
            Ok(())
        }

        fn most(&self) -> usize {
            1 << 20
        }

        fn end(&mut self) {}
    }

    const LEN: usize = 8 << 20;

    fn stream(patience: usize) -> (Stream<Fake>, Arc<Mutex<usize>>) {
        let (answer, answers) = channel();
        let most_waiting = Arc::new(Mutex::new(0));
        let fake = Fake {
            bytes: Arc::new(Mutex::new(vec![0; LEN])),
            waiting: Vec::new(),
            most_waiting: most_waiting.clone(),
            patience,
            answer,
        };
        (Stream::new(fake, Answers(answers), (0, LEN as u64)), most_waiting)
    }

    #[test]
    fn what_is_written_is_read_in_a_row_and_out_of_order() {
        // More than one is under way, or the fake would never answer.
        let (file, most) = stream(2);
        for i in 0..64u64 {
            file.write_all_at(&[i as u8; 1 << 16], i << 16).unwrap();
        }
        file.sync().unwrap();
        assert!(*most.lock().unwrap() >= 2);
        let (file, _) = (stream(1).0, ());
        file.write_all_at(&[7; 4096], 4096).unwrap();
        let mut buf = [0; 4096];
        for at in [4096u64, 8192, 4096, 0, 4096, 8192, 12_288] {
            file.read_exact_at(&mut buf, at).unwrap();
            assert!(buf.iter().all(|byte| *byte == if at == 4096 { 7 } else { 0 }), "{at}");
        }
    }

    #[test]
    fn bytes_that_were_fetched_ahead_do_not_outlive_a_write() {
        let (file, _) = stream(1);
        let mut buf = [0; 4096];
        for i in 0..200u64 {
            file.read_exact_at(&mut buf, i << 12).unwrap();
            assert_eq!(buf, [0; 4096], "{i}");
            // One that was fetched, and one that is rewritten in place.
            file.write_all_at(&[9; 4096], (i + 1) << 12).unwrap();
            file.write_all_at(&[7; 4096], i << 12).unwrap();
            file.read_exact_at(&mut buf, (i + 1) << 12).unwrap();
            assert_eq!(buf, [9; 4096], "{i}");
            file.write_all_at(&[0; 4096], (i + 1) << 12).unwrap();
        }
        file.sync().unwrap();
        for i in 0..200u64 {
            file.read_exact_at(&mut buf, i << 12).unwrap();
            assert_eq!(buf, [7; 4096], "{i}");
        }
    }

    #[test]
    fn a_failed_write_is_told_by_the_sync() {
        let (file, _) = stream(1);
        file.write_all_at(&[9; 4], 13).unwrap();
        file.write_all_at(&[9; 4], 29).unwrap();
        assert_eq!(file.sync().unwrap_err().to_string(), "unlucky");
        file.sync().unwrap();
        let error = file.write_all_at(&[9; 4], LEN as u64).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull);
    }
}
