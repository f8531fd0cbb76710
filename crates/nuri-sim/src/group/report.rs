//! What a run did, so that a reader sees that it did something.

/// Counts of one run; add them up over many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub virtual_ms: u64,
    pub writes: u64,
    pub failed_writes: u64,
    pub reads: u64,
    pub failed_reads: u64,
    pub packets: u64,
    pub lost: u64,
    pub doubled: u64,
    pub crashes: u64,
    pub cuts: u64,
    pub freezes: u64,
    pub deaths: u64,
    /// Disks that were wiped, restored or rotten.
    pub harms: u64,
    /// Epochs of the map, and members brought up to date.
    pub epochs: u64,
    pub synced: u64,
    /// Stands for every packet and its time: equal for equal runs only.
    pub trace: u64,
}

impl Report {
    /// Adds another run's counts.
    pub fn add(&mut self, other: &Report) {
        let pairs = [
            (&mut self.virtual_ms, other.virtual_ms),
            (&mut self.writes, other.writes),
            (&mut self.failed_writes, other.failed_writes),
            (&mut self.reads, other.reads),
            (&mut self.failed_reads, other.failed_reads),
            (&mut self.packets, other.packets),
            (&mut self.lost, other.lost),
            (&mut self.doubled, other.doubled),
            (&mut self.crashes, other.crashes),
            (&mut self.cuts, other.cuts),
            (&mut self.freezes, other.freezes),
            (&mut self.deaths, other.deaths),
            (&mut self.harms, other.harms),
            (&mut self.epochs, other.epochs),
            (&mut self.synced, other.synced),
        ];
        pairs.into_iter().for_each(|(sum, one)| *sum += one);
    }
}
