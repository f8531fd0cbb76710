//! Clients that encrypt, and those that do not.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::nbd::{OVERLAPS, PRELUDE, PYTHON, Server};
use crate::support::{Space, refused, run, text};

/// An authority with a directory of certificates, in the layout that qemu and libnbd use.
fn certificates(space: &Space, name: &str) -> PathBuf {
    let dir = space.make_dir(name);
    let at = |file: &str| dir.join(file).display().to_string();
    let request = ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
    let keys = |who: &str| [at(&format!("{who}-key.pem")), at(&format!("{who}-cert.pem"))];
    let [key, cert] = keys("ca");
    let subject = format!("/CN={name}");
    let made = ["-x509", "-days", "2", "-subj", &subject, "-keyout", &key, "-out", &cert];
    run("openssl", &[&request[..], &made].concat());
    for who in ["server", "client"] {
        let [own, own_cert] = keys(who);
        let signed = [
            "-x509",
            "-days",
            "2",
            "-subj",
            &subject,
            "-CA",
            &cert,
            "-CAkey",
            &key,
            "-addext",
            "basicConstraints=critical,CA:FALSE",
            "-addext",
            "subjectAltName=DNS:localhost,IP:127.0.0.1",
            "-keyout",
            &own,
            "-out",
            &own_cert,
        ];
        run("openssl", &[&request[..], &signed].concat());
    }
    dir
}

/// Ends with what went wrong: what the client does after it has connected.
fn client(port: &str, words: &str, script: &str) -> Result<(), String> {
    let connect = format!(
        "{PRELUDE}
def connect(port):
    h = nbd.NBD()
    h.set_export_name('vm')
    {words}
    h.add_meta_context('base:allocation')
    h.connect_tcp('localhost', port)
    return h
{script}"
    );
    let out = Command::new(PYTHON).args(["-c", &connect, port]).output().unwrap();
    if out.status.success() { Ok(()) } else { Err(text(&out.stderr)) }
}

/// TLS 1.2.
fn older(port: &str, certificates: &Path) {
    let at = |file: &str| certificates.join(file).display().to_string();
    let (ca, cert, key) = (at("ca-cert.pem"), at("client-cert.pem"), at("client-key.pem"));
    let script = "
import socket, ssl, struct, sys
port, ca, cert, key = sys.argv[1:]
s = socket.create_connection(('localhost', int(port)))
assert s.recv(18, socket.MSG_WAITALL)[:8] == b'NBDMAGIC'
s.sendall(struct.pack('>I', 3) + b'IHAVEOPT' + struct.pack('>II', 5, 0))
assert struct.unpack('>QIII', s.recv(20, socket.MSG_WAITALL))[1:] == (5, 1, 0)
context = ssl.create_default_context(cafile=ca)
context.load_cert_chain(cert, key)
context.maximum_version = ssl.TLSVersion.TLSv1_2
tls = context.wrap_socket(s, server_hostname='localhost')
assert tls.version() == 'TLSv1.2', tls.version()
tls.sendall(b'IHAVEOPT' + struct.pack('>II', 3, 0))
assert struct.unpack('>QII', tls.recv(16)) == (0x3e889045565a9, 3, 2)
";
    run(PYTHON, &["-c", script, port, &ca, &cert, &key]);
}

#[test]
fn clients_encrypt_and_show_who_they_are() {
    let space = Space::up(&["--target-size", "1G"]);
    let dir = space.dir();
    run(crate::support::NURI, &["volume", "create", "vm", "--size", "64M", "--dir", &dir]);
    let (own, other) = (certificates(&space, "own"), certificates(&space, "other"));
    let shown = own.display().to_string();
    let serve = |name: &str, certificates: &str| {
        let listen = ["--listen", "127.0.0.1:0", "--tls-cert", certificates];
        let args = [&["volume", "serve", "--dir", &dir][..], &listen].concat();
        let server = Server::start(&space, name, &args);
        let log = fs::read_to_string(space.path(&format!("{name}.log"))).unwrap();
        let port = log.split("nbds://127.0.0.1:").nth(1).unwrap().split_whitespace().next();
        (server, port.unwrap().to_owned())
    };
    let secure = |dir: &PathBuf| {
        let dir = dir.display();
        let secured = "h.set_tls(nbd.TLS_REQUIRE); h.set_tls_verify_peer(True)";
        format!("{secured}; h.set_tls_certificates('{dir}')")
    };
    let use_it = "
h = connect(sys.argv[1])
assert h.get_tls_negotiated()
h.pwrite(b'a' * (3 << 20), 77); h.flush()
assert bytes(h.pread(3 << 20, 77)) == b'a' * (3 << 20)
h.trim(1 << 20, 0)
h.shutdown()
";
    let (server, port) = serve("secure", &shown);
    client(&port, &secure(&own), use_it).unwrap();
    older(&port, &own);
    client(&port, &secure(&own), OVERLAPS).unwrap();
    let plain = client(&port, "pass", use_it).unwrap_err();
    assert!(plain.contains("TLS"), "{plain}");
    let stranger = client(&port, &secure(&other), use_it).unwrap_err();
    assert!(stranger.contains("TLS") || stranger.contains("ertificate"), "{stranger}");
    // Of the right authority for the server, and without a certificate of its own.
    let nobody = space.make_dir("nobody");
    fs::copy(own.join("ca-cert.pem"), nobody.join("ca-cert.pem")).unwrap();
    client(&port, &secure(&nobody), use_it).unwrap_err();
    let image = format!("nbds://localhost:{port}/vm?tls-certificates={shown}");
    let info = run("nbdinfo", &["--json", &image]);
    assert!(info.contains(r#""TLS": true"#), "{info}");
    server.end();

    // Without an authority nobody is asked who they are.
    fs::remove_file(own.join("ca-cert.pem")).unwrap();
    let (server, port) = serve("open", &shown);
    fs::rename(own.join("ca-key.pem"), nobody.join("key")).unwrap();
    client(&port, &secure(&nobody), use_it).unwrap();
    server.end();

    let serve = ["volume", "serve", "--dir", &dir, "--socket", "/none", "--tls-cert"];
    refused(&[&serve[..], &["/none"]].concat(), "/none/server-cert.pem: ");
    fs::write(own.join("server-key.pem"), "no key").unwrap();
    refused(&[&serve[..], &[&shown]].concat(), "server-key.pem: ");
    fs::copy(other.join("server-key.pem"), own.join("server-key.pem")).unwrap();
    refused(&[&serve[..], &[&shown]].concat(), "server-cert.pem: ");
    space.down_clean();
}
