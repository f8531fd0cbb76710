//! Machines that boot with the example units of `deploy/`: what was made once by hand comes back
//! by itself. Each is a container whose first process is systemd.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use crate::machines::Machines;
use crate::support::{NURI, text, wait};

const SOON: Duration = Duration::from_secs(40);
/// Of systemd's own units, those without which nothing boots.
const UNITS: &str = "basic sysinit multi-user shutdown umount final poweroff network-online \
                     network local-fs local-fs-pre swap sockets timers paths slices";

/// Units of systemd are a few of the machine's; those of the test lie in `/srv/units`.
fn boot(machines: &mut Machines, machine: usize) {
    let mut script = String::from("mount -t tmpfs none /run\nmkdir -p /run/u\n");
    script += &format!("for u in {UNITS}; do cp /lib/systemd/system/$u.target /run/u/; done\n");
    script += "cp /lib/systemd/system/systemd-poweroff.service /run/u/\n\
               mount --bind /run/u /lib/systemd/system\n\
               mount --bind /srv/units /etc/systemd/system\n\
               exec env -i container=nuri PATH=$PATH /lib/systemd/systemd --system \
               --unit=multi-user.target --log-target=null --show-status=no";
    machines.start(machine, &script);
    wait("it is booted", SOON, || {
        let out = machines.command(machine, "systemctl is-active multi-user.target").output();
        let out = out.unwrap();
        if out.status.success() { Ok(()) } else { Err(text(&out.stderr)) }
    });
}

/// As `poweroff` does.
fn power_off(machines: &mut Machines, machine: usize) {
    machines.run(machine, "systemctl poweroff --no-block");
    machines.wait_stopped(machine);
}

/// Puts the example unit where systemd looks.
fn install(machines: &Machines, machine: usize, unit: &str) {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    let text = fs::read_to_string(deploy.join(unit)).unwrap();
    let text = text.replace("/usr/local/bin/nuri", NURI).replace("/etc/nuri/", "/root/");
    fs::write(machines.path(machine, "srv/units").join(unit), text).unwrap();
    machines.run(machine, &format!("systemctl daemon-reload && systemctl enable --now {unit}"));
}

#[test]
fn what_was_made_once_comes_back_after_a_boot() {
    let mut machines = Machines::new("boot", 3);
    for machine in 1..=3 {
        fs::create_dir(machines.path(machine, "srv/units")).unwrap();
        boot(&mut machines, machine);
    }
    machines.run(1, "nuri up --create --dir /var/lib/nuri --listen 10.0.0.1:7000");
    machines.run(1, "nuri down --dir /var/lib/nuri && nuri up --dir /var/lib/nuri");
    for (machine, name) in [(2, "token"), (3, "mount.token")] {
        let token = machines.path(1, "var/lib/nuri").join(name);
        fs::copy(token, machines.path(machine, "root").join(name)).unwrap();
    }
    let node = "nuri node run --create --dir /var/lib/nuri-node --listen 10.0.0.2:7000 \
                --join 10.0.0.1:7000 --token-file /root/token --target /srv/nuri-target";
    let mut node = machines.daemon(2, node).stderr(Stdio::null()).spawn().unwrap();
    let listed = |machines: &Machines| machines.run(1, "nuri node list --dir /var/lib/nuri");
    wait("the node joins", SOON, || listed(&machines).contains("10.0.0.2:7000"));
    machines.end_daemon(2);
    node.wait().unwrap();
    machines.run(1, "nuri down --dir /var/lib/nuri");
    install(&machines, 1, "nuri.service");
    install(&machines, 2, "nuri-node.service");
    install(&machines, 3, "nuri-mount.service");
    let file = "cat /mnt/nuri/file";
    let write = "mountpoint -q /mnt/nuri && echo bytes > /mnt/nuri/file && sync /mnt/nuri/file";
    wait("it is mounted", SOON, || machines.command(3, write).status().unwrap().success());

    for how in [power_off, Machines::cut_power] {
        // The mount is gone first, and comes first.
        (1..=3).rev().for_each(|machine| how(&mut machines, machine));
        (1..=3).rev().for_each(|machine| boot(&mut machines, machine));
        wait("the file is there", SOON, || {
            let out = machines.command(3, file).output().unwrap();
            if text(&out.stdout) == "bytes\n" { Ok(()) } else { Err(text(&out.stderr)) }
        });
        wait("all serve", SOON, || {
            let said = listed(&machines);
            if said.matches(" up ").count() == 2 {
                return Ok(());
            }
            let unit = "systemctl status nuri-node; ps ax; \
                        timeout 5 nuri node run --dir /var/lib/nuri-node";
            let out = machines.command(2, unit).output().unwrap();
            Err(said + &text(&out.stdout) + &text(&out.stderr))
        });
    }
    power_off(&mut machines, 3);
    power_off(&mut machines, 1);
}
