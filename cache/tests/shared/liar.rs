//! A server with scripted answers, byte by byte, and a proxy that holds back traffic.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};

/// The server's reaction to a request.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// Sends these bytes and closes.
    Say(Vec<u8>),
    /// Sends the first bytes, then repeats the others until the client goes.
    Endless(Vec<u8>, Vec<u8>),
    /// Sends nothing and keeps the connection open until the client goes.
    Silent,
}

/// Maps a request, method and path, to a reaction.
type Rule = Box<dyn Fn(&str, &str) -> Act + Send + Sync>;

#[derive(Debug)]
pub(crate) struct Liar {
    pub(crate) port: u16,
    pub(crate) asked: Arc<AtomicUsize>,
    pub(crate) sent: Arc<AtomicU64>,
}

impl Liar {
    /// Serves until the process ends.
    pub(crate) fn new(rule: impl Fn(&str, &str) -> Act + Send + Sync + 'static) -> Liar {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().unwrap().port();
        let (asked, sent) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicU64::new(0)));
        let (rule, counts): (Arc<Rule>, _) = (Arc::new(Box::new(rule)), (asked.clone(), sent.clone()));
        spawn(move || {
            for stream in listener.incoming().flatten() {
                let (rule, (asked, sent)) = (rule.clone(), counts.clone());
                spawn(move || {
                    let _ = answer(stream, &rule, &asked, &sent);
                });
            }
        });
        Liar { port, asked, sent }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/cache", self.port)
    }
}

fn spawn(run: impl FnOnce() + Send + 'static) {
    std::thread::Builder::new().spawn(run).expect("a thread");
}

fn answer(stream: TcpStream, rule: &Rule, asked: &AtomicUsize, sent: &AtomicU64) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let (mut first, mut length) = (String::new(), 0);
    reader.read_line(&mut first)?;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
        if line.trim().is_empty() {
            break;
        }
    }
    std::io::copy(&mut (&mut reader).take(length), &mut std::io::sink())?;
    let mut words = first.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    asked.fetch_add(1, SeqCst);
    let mut stream = stream;
    let mut say = |bytes: &[u8]| -> std::io::Result<()> {
        stream.write_all(bytes)?;
        sent.fetch_add(bytes.len() as u64, SeqCst);
        Ok(())
    };
    match rule(method, path) {
        Act::Say(bytes) => {
            say(&bytes)?;
            stream.shutdown(Shutdown::Write)?;
            // Until the client has it all; an earlier close could discard it.
            std::io::copy(&mut reader, &mut std::io::sink())?;
        }
        Act::Endless(bytes, again) => {
            say(&bytes)?;
            loop {
                say(&again)?;
            }
        }
        Act::Silent => {
            std::io::copy(&mut reader, &mut std::io::sink())?;
        }
    }
    Ok(())
}

/// An answer with a body and a claimed length.
pub(crate) fn http(status: &str, claimed: usize, body: &[u8]) -> Vec<u8> {
    let modified = "last-modified: Tue, 24 Nov 2026 12:00:00 GMT";
    let head =
        format!("HTTP/1.1 {status}\r\ncontent-length: {claimed}\r\n{modified}\r\nconnection: close\r\n\r\n");
    [head.as_bytes(), body].concat()
}

/// Forwards everything to another port, and answers only as far as it is open.
#[derive(Debug)]
pub(crate) struct Valve {
    pub(crate) port: u16,
    shared: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Debug)]
struct State {
    /// Bytes of answers that may still pass.
    open: u64,
    /// Bytes of answers that wait.
    held: u64,
}

impl Valve {
    /// Closed except for this many bytes.
    pub(crate) fn new(to: u16, open: u64) -> Valve {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new((Mutex::new(State { open, held: 0 }), Condvar::new()));
        let state = shared.clone();
        spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(("127.0.0.1", to)) else { continue };
                let (Ok(mut from), Ok(mut into)) = (client.try_clone(), server.try_clone()) else { continue };
                spawn(move || {
                    let _ = std::io::copy(&mut from, &mut into);
                    let _ = into.shutdown(Shutdown::Write);
                });
                let state = state.clone();
                spawn(move || pass(server, client, &state));
            }
        });
        Valve { port, shared }
    }

    /// Lets everything pass.
    pub(crate) fn open(&self) {
        self.shared.0.lock().unwrap().open = u64::MAX;
        self.shared.1.notify_all();
    }

    /// The number of bytes held back.
    pub(crate) fn held(&self) -> u64 {
        self.shared.0.lock().unwrap().held
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, (state, opened): &(Mutex<State>, Condvar)) {
    let mut bytes = [0; 4096];
    loop {
        // A killed server resets its connections.
        let len = from.read(&mut bytes).unwrap_or(0);
        if len == 0 {
            let _ = to.shutdown(Shutdown::Both);
            return;
        }
        let mut state = state.lock().unwrap();
        state.held += len as u64;
        while state.open < len as u64 {
            state = opened.wait(state).unwrap();
        }
        state.held -= len as u64;
        if state.open != u64::MAX {
            state.open -= len as u64;
        }
        drop(state);
        if to.write_all(&bytes[..len]).is_err() {
            return;
        }
    }
}
