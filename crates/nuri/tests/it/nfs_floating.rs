//! An address of NFS servers that moves from one machine to another, with a client that goes on.

use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use nfs3_types::nfs3::{self, Nfs3Option, createhow3, nfs_fh3, sattr3, stable_how};

use crate::machines::Machines;
use crate::nfs_client::{Client, packed, place};
use crate::support::wait;

const SOON: Duration = Duration::from_secs(30);
/// The space, two servers, a client.
const SPACE: usize = 1;
const SERVERS: [usize; 2] = [2, 3];
const CLIENT: usize = 4;
const FLOATING: [u8; 4] = [10, 0, 0, 100];

/// A process with a network of its own that does nothing.
const STAYS: &str = "exec sleep 600";

fn prepared() -> Machines {
    let mut machines = Machines::new("float", 4);
    (1..=4).for_each(|machine| machines.start(machine, STAYS));
    let up = "nuri up --create --dir /srv/nuri --listen 10.0.0.1:7000 --mount /mnt/nuri \
              --target-size 1G --shape stripe";
    machines.run(SPACE, up);
    machines.run(SPACE, "mkdir /mnt/nuri/home");
    machines
        .run(SPACE, "nuri nfs export add /home '10.0.0.0/24(rw,no_root_squash)' --dir /srv/nuri");
    for machine in SERVERS {
        let to = machines.path(machine, "root/token");
        std::fs::copy(machines.path(SPACE, "srv/nuri/mount.token"), to).unwrap();
    }
    machines
}

fn serve(machines: &Machines, machine: usize) {
    let own = format!("10.0.0.{machine}:2049");
    let line = format!(
        "nuri nfs serve --at 10.0.0.1:7000 --token-file /root/token --listen {own} \
         --floating 10.0.0.100/24 </dev/null >/root/nfs.log 2>&1 & echo $! >/root/nfs.pid"
    );
    machines.run(machine, &line);
    let log = machines.path(machine, "root/nfs.log");
    wait("NFS is served", SOON, || {
        let said = std::fs::read_to_string(&log).unwrap_or_default();
        if said.contains(&format!("serves at {own}")) { Ok(()) } else { Err(said) }
    });
}

/// Which machines have the address.
fn holders(machines: &Machines) -> Vec<usize> {
    let has = |machine: &usize| machines.run(*machine, "ip -4 addr show").contains("10.0.0.100/24");
    SERVERS.into_iter().filter(has).collect()
}

fn logs(machines: &Machines) -> String {
    let log = |machine: usize| {
        let said = std::fs::read_to_string(machines.path(machine, "root/nfs.log"));
        format!("{machine}:\n{}", said.unwrap_or_default())
    };
    SERVERS.map(log).concat()
}

fn wait_held_by(machines: &Machines, machine: usize) {
    wait("the address is there", SOON, || {
        let holders = holders(machines);
        let said = || format!("{holders:?} have it; {}", logs(machines));
        if holders == [machine] { Ok(()) } else { Err(said()) }
    });
}

/// A client that connects anew until it is answered, and asks the same again.
struct Patient<'m> {
    machines: &'m Machines,
    client: Option<Client>,
    longest: Duration,
}

impl Patient<'_> {
    fn connect(&self) -> Option<Client> {
        let to = SocketAddr::from((FLOATING, 2049));
        let connect = || TcpStream::connect_timeout(&to, Duration::from_secs(1)).ok();
        let stream = self.machines.in_network(CLIENT, connect)?;
        stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
        Some(Client::over(stream))
    }

    /// Does something that may be done again, until it is answered.
    fn does<T>(&mut self, act: impl Fn(&mut Client) -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            let is_late = start.elapsed() > Duration::from_secs(60);
            assert!(!is_late, "no answer for a minute: {}", logs(self.machines));
            let client = self.client.take().or_else(|| self.connect());
            let done = client.and_then(|mut client| {
                let done = act(&mut client)?;
                Some((client, done))
            });
            if let Some((client, done)) = done {
                self.client = Some(client);
                self.longest = self.longest.max(start.elapsed());
                return done;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// A new file with these bytes, durable.
    fn makes(&mut self, root: &nfs_fh3, name: &str, byte: u8) {
        let mode = Nfs3Option::Some(0o644);
        let file = self.does(|client| {
            let how = createhow3::UNCHECKED(sattr3 { mode, ..sattr3::default() });
            let args = nfs3::CREATE3args { where_: place(root, name), how };
            match client.try_nfs::<nfs3::CREATE3res>(8, &args)? {
                nfs3::CREATE3res::Ok(made) => Some(made.obj.unwrap()),
                // The space does not answer for now.
                nfs3::CREATE3res::Err(_) => None,
            }
        });
        self.does(|client| {
            let data = vec![byte; 20_000];
            let file = file.clone();
            let (offset, count, stable) = (0, data.len() as u32, stable_how::FILE_SYNC);
            let data = nfs3_types::xdr_codec::Opaque::owned(data);
            let args = nfs3::WRITE3args { file, offset, count, stable, data };
            match client.try_nfs::<nfs3::WRITE3res>(7, &args)? {
                nfs3::WRITE3res::Ok(wrote) => (wrote.count == count).then_some(()),
                nfs3::WRITE3res::Err(_) => None,
            }
        });
    }
}

#[test]
fn an_address_moves_with_its_clients_when_its_server_or_machine_is_lost() {
    let machines = prepared();
    serve(&machines, SERVERS[0]);
    wait_held_by(&machines, SERVERS[0]);
    serve(&machines, SERVERS[1]);
    let mut client = Patient { machines: &machines, client: None, longest: Duration::ZERO };
    let root = client.does(|client| client.mount("/home").ok());
    let mut count = 0;
    let mut makes = |client: &mut Patient<'_>, more: u8| {
        for _ in 0..more {
            client.makes(&root, &format!("file{count}"), count);
            count += 1;
        }
        std::mem::take(&mut client.longest)
    };
    makes(&mut client, 10);
    // Its process is killed.
    machines.run(SERVERS[0], "kill -9 $(cat /root/nfs.pid)");
    let killed = makes(&mut client, 10);
    wait_held_by(&machines, SERVERS[1]);
    // The first comes back, and waits for its turn; then the other's cable is pulled.
    serve(&machines, SERVERS[0]);
    makes(&mut client, 5);
    assert_eq!(holders(&machines), [SERVERS[1]], "nobody takes it from who has it");
    machines.cable(SERVERS[1], "down");
    let cut = makes(&mut client, 10);
    // Who was cut off has left it by itself.
    wait_held_by(&machines, SERVERS[0]);
    machines.cable(SERVERS[1], "up");
    makes(&mut client, 5);
    wait_held_by(&machines, SERVERS[0]);
    // As a person ends it: the other has it at once.
    machines.run(SERVERS[0], "kill $(cat /root/nfs.pid)");
    let ended = makes(&mut client, 5);
    wait_held_by(&machines, SERVERS[1]);
    println!("pauses: killed {killed:.1?}, cut off {cut:.1?}, ended {ended:.1?}");
    for (what, took) in [("killed", killed), ("cut off", cut), ("ended", ended)] {
        assert!(took < Duration::from_secs(20), "{what}: a pause of {took:?}");
    }
    for i in 0..count {
        let line = format!("head -c 20000 /mnt/nuri/home/file{i} | tr -d '\\{i:03o}' | wc -c");
        assert_eq!(machines.run(SPACE, &line).trim(), "0", "file{i}");
        let line = format!("stat -c %s /mnt/nuri/home/file{i}");
        assert_eq!(machines.run(SPACE, &line).trim(), "20000", "file{i}");
    }
    machines.run(SPACE, "nuri down --dir /srv/nuri");
}

/// Status of a call with this number, asked until it is answered.
fn status(client: &mut Patient<'_>, xid: u32, (procedure, args): &(u32, Vec<u8>)) -> u32 {
    client.does(|client| {
        client.xid = xid;
        let results = client.try_results(*procedure, args)?;
        Some(u32::from_be_bytes(results[..4].try_into().unwrap()))
    })
}

/// A client that had no answer asks the next server the same. Catches `nfs_forgets_done`.
#[test]
fn what_a_lost_server_did_is_answered_by_the_next_and_not_done_again() {
    let machines = prepared();
    machines.run(SPACE, "mkdir /mnt/nuri/home/old");
    serve(&machines, SERVERS[0]);
    wait_held_by(&machines, SERVERS[0]);
    serve(&machines, SERVERS[1]);
    let mut client = Patient { machines: &machines, client: None, longest: Duration::ZERO };
    let root = client.does(|client| client.mount("/home").ok());
    let attributes = sattr3 { mode: Nfs3Option::Some(0o750), ..sattr3::default() };
    let how = createhow3::GUARDED(attributes.clone());
    let make = packed(&nfs3::CREATE3args { where_: place(&root, "file"), how });
    assert_eq!(status(&mut client, 100, &(8, make.clone())), 0);
    let file = client.does(|client| client.find(&root, "file").ok());
    let symlink = nfs3::symlinkdata3 {
        symlink_attributes: sattr3::default(),
        symlink_data: nfs3::nfspath3(nfs3_types::xdr_codec::Opaque::owned(b"file".to_vec())),
    };
    let (from, to) = (place(&root, "file"), place(&root, "moved"));
    let calls = [
        (8, make),
        (9, packed(&nfs3::MKDIR3args { where_: place(&root, "dir"), attributes })),
        (10, packed(&nfs3::SYMLINK3args { where_: place(&root, "soft"), symlink })),
        (15, packed(&nfs3::LINK3args { file, link: place(&root, "hard") })),
        (14, packed(&nfs3::RENAME3args { from, to })),
        (12, packed(&nfs3::REMOVE3args { object: place(&root, "hard") })),
        (13, packed(&nfs3::RMDIR3args { object: place(&root, "old") })),
    ];
    let all = |client: &mut Patient<'_>| {
        let one = |(xid, call)| status(client, xid, call);
        (100..).zip(&calls).map(one).collect::<Vec<_>>()
    };
    assert_eq!(all(&mut client), [0; 7]);
    let names = "cd /mnt/nuri/home && stat -c '%n %i %a %Z' * | sort";
    let before = machines.run(SPACE, names);
    for (lost, next) in [(0, 1), (1, 0)] {
        machines.run(SERVERS[lost], "kill -9 $(cat /root/nfs.pid)");
        wait_held_by(&machines, SERVERS[next]);
        // From another port, as a client that was started anew.
        client.client = None;
        assert_eq!(all(&mut client), [0; 7]);
        assert_eq!(machines.run(SPACE, names), before, "nothing was done again");
        // Other calls of the same words are done: the names are there, or not there.
        let another = [(1, 17), (2, 17), (5, 2), (6, 2)];
        for (at, wanted) in another {
            assert_eq!(status(&mut client, 200 + at as u32, &calls[at]), wanted, "call {at}");
        }
        serve(&machines, SERVERS[lost]);
    }
    machines.run(SPACE, "nuri down --dir /srv/nuri");
}

#[test]
fn addresses_that_cannot_move_are_refused_in_a_sentence() {
    let machines = prepared();
    for (words, sentence) in [
        ("--floating 10.0.0.100", "is no address that can move"),
        ("--floating 127.0.0.1/8", "is no address that can move"),
        ("--floating 192.0.2.1/24", "no interface of this machine is in the network"),
    ] {
        let line = format!(
            "! nuri nfs serve --at 10.0.0.1:7000 --token-file /root/token \
             --listen 10.0.0.2:2049 {words}"
        );
        let said = machines.run(SERVERS[0], &line);
        assert!(said.contains(sentence), "{words}: {said}");
    }
    machines.run(SPACE, "nuri down --dir /srv/nuri");
}
