//! As much of HTTP/1.1 as a page on this machine needs: one request a connection, read beside the others, handed out in the
//! order in which they are complete. Nothing is allocated by what a header claims: who is not let in is answered before a body is
//! read, and a body has a limit.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// The longest request line with headers.
const LONGEST_HEAD: usize = 64 << 10;
/// Headers of a request.
const MOST_HEADERS: usize = 64;
/// Connections that are read at one time; more are closed.
const MOST_CONNECTIONS: usize = 64;
/// How long a client may be silent, and how long its head may take.
const SILENCE: Duration = Duration::from_secs(5);
/// What of a body that is not wanted is read, so that the answer arrives before the connection is closed.
const MOST_UNWANTED: u64 = 4 << 20;

/// What is asked, without the body.
pub(crate) struct Head {
    pub(crate) method: String,
    pub(crate) target: String,
    headers: Vec<(String, String)>,
}

impl Head {
    /// A header, by its name in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// A request, to be answered.
pub(crate) struct Request {
    pub(crate) head: Head,
    pub(crate) body: Vec<u8>,
    connection: TcpStream,
}

/// An answer: its status, its type and its bytes.
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) kind: &'static str,
    pub(crate) body: Vec<u8>,
}

/// What is done with a request before its body is read.
pub(crate) enum Admission {
    /// Its body is read, up to so many bytes; a longer one gets that answer.
    Body(u64, Response),
    /// It gets this answer.
    Refused(Response),
}

/// Where requests come in.
pub(crate) struct Listener {
    requests: Mutex<mpsc::Receiver<Request>>,
    pub(crate) address: SocketAddr,
}

impl Listener {
    /// Listens; `admit` says of each request what is done with it.
    pub(crate) fn bind(
        address: SocketAddr,
        admit: impl Fn(&Head, SocketAddr) -> Admission + Send + Sync + 'static,
    ) -> io::Result<Listener> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let (complete, requests) = mpsc::sync_channel(MOST_CONNECTIONS);
        let (admit, reading) = (Arc::new(admit), Arc::new(AtomicUsize::new(0)));
        thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                if reading.load(Ordering::Relaxed) >= MOST_CONNECTIONS {
                    continue; // it is closed
                }
                reading.fetch_add(1, Ordering::Relaxed);
                let (admit, reading, complete) = (admit.clone(), reading.clone(), complete.clone());
                thread::spawn(move || {
                    if let Ok(Some(request)) = Request::read(connection, |head| admit(head, address)) {
                        let _ended = complete.send(request);
                    }
                    reading.fetch_sub(1, Ordering::Relaxed);
                });
            }
        });
        Ok(Listener { requests: Mutex::new(requests), address })
    }

    /// The next request, for one of those who answer; nothing when no more can come.
    pub(crate) fn next(&self) -> Option<Request> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
    }
}

impl Request {
    /// Reads a request; nothing where it is answered already.
    fn read(mut connection: TcpStream, admit: impl Fn(&Head) -> Admission) -> io::Result<Option<Request>> {
        connection.set_read_timeout(Some(SILENCE))?;
        connection.set_write_timeout(Some(SILENCE))?;
        let Some((head, mut body)) = read_head(&mut connection)? else {
            answer(connection, &refusal(400, "not a request\n"))?;
            return Ok(None);
        };
        let (limit, too_long) = match admit(&head) {
            Admission::Body(limit, too_long) => (limit, too_long),
            Admission::Refused(response) => {
                answer(connection, &response)?;
                return Ok(None);
            }
        };
        let length = match head.header("content-length").map(str::parse::<u64>) {
            None => 0,
            Some(Ok(length)) if head.header("transfer-encoding").is_none() => length,
            Some(_) => {
                answer(connection, &refusal(400, "no length\n"))?;
                return Ok(None);
            }
        };
        if length > limit {
            answer(connection, &too_long)?;
            return Ok(None);
        }
        if head.header("expect").is_some_and(|expect| expect.eq_ignore_ascii_case("100-continue")) {
            connection.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
        let had = u64::try_from(body.len()).unwrap_or(u64::MAX);
        (&mut connection).take(length.saturating_sub(had)).read_to_end(&mut body)?;
        Ok((u64::try_from(body.len()).ok() == Some(length)).then_some(Request { head, body, connection }))
    }

    /// Answers it, and closes the connection.
    pub(crate) fn answer(self, response: &Response) {
        let _gone = answer(self.connection, response); // a browser that went away needs no answer
    }
}

/// The head, and what came of the body with it; nothing where it is none.
fn read_head(connection: &mut TcpStream) -> io::Result<Option<(Head, Vec<u8>)>> {
    let (begun, mut bytes) = (Instant::now(), Vec::new());
    let mut piece = [0; 4096];
    loop {
        let read = connection.read(&mut piece)?;
        bytes.extend_from_slice(piece.get(..read).unwrap_or_default());
        let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(&bytes) {
            Ok(httparse::Status::Complete(end)) => {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                let headers = request.headers.iter();
                let head = Head {
                    method: request.method.unwrap_or_default().to_owned(),
                    target: request.path.unwrap_or_default().to_owned(),
                    headers: headers.map(|h| (h.name.to_ascii_lowercase(), text(h.value))).collect(),
                };
                return Ok(Some((head, bytes.split_off(end))));
            }
            Ok(httparse::Status::Partial)
                if read > 0 && bytes.len() <= LONGEST_HEAD && begun.elapsed() < SILENCE => {}
            _ => return Ok(None),
        }
    }
}

fn refusal(status: u16, text: &str) -> Response {
    Response { status, kind: "text/plain", body: text.as_bytes().to_vec() }
}

fn answer(mut connection: TcpStream, response: &Response) -> io::Result<()> {
    let Response { status, kind, body } = response;
    let reason = match status {
        200 => "OK",
        404 => "Not Found",
        422 => "Unprocessable Content",
        _ => "Bad Request",
    };
    let head = format!(
        "HTTP/1.1 {status} {reason}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\
         Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nX-Frame-Options: DENY\r\n\
         Referrer-Policy: no-referrer\r\n\r\n",
        body.len()
    );
    connection.write_all(head.as_bytes())?;
    connection.write_all(body)?;
    connection.shutdown(Shutdown::Write)?;
    // a connection that is closed with bytes unread takes the answer with it
    connection.set_read_timeout(Some(Duration::from_millis(200)))?;
    io::copy(&mut (&mut connection).take(MOST_UNWANTED), &mut io::sink())?;
    Ok(())
}
