//! A name server on loopback with responses that a test configures.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use hickory_resolver::proto::op::{Message, ResponseCode};
use hickory_resolver::proto::rr::rdata::{A, AAAA, SRV};
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};
use std::sync::Mutex;

/// The response for every name.
#[derive(Debug, Clone, Default)]
pub(crate) struct Says {
    pub(crate) code: ResponseCode,
    pub(crate) v4: Vec<Ipv4Addr>,
    pub(crate) v6: Vec<Ipv6Addr>,
    pub(crate) services: Vec<(&'static str, u16)>,
}

impl Says {
    pub(crate) fn v4(last: &[u8]) -> Self {
        Self { v4: last.iter().map(|&last| Ipv4Addr::new(127, 0, 0, last)).collect(), ..Self::default() }
    }

    pub(crate) fn fails_with(code: ResponseCode) -> Self {
        Self { code, ..Self::default() }
    }

    fn records(&self, name: &Name, kind: RecordType) -> Vec<Record> {
        let data: Vec<RData> = match kind {
            RecordType::A => self.v4.iter().map(|&address| RData::A(A(address))).collect(),
            RecordType::AAAA => self.v6.iter().map(|&address| RData::AAAA(AAAA(address))).collect(),
            RecordType::SRV => {
                let target = |host: &str| host.parse::<Name>().expect("a name");
                self.services.iter().map(|&(host, port)| RData::SRV(SRV::new(0, 0, port, target(host)))).collect()
            }
            _ => Vec::new(),
        };
        data.into_iter().map(|data| Record::from_rdata(name.clone(), 0, data)).collect()
    }
}

pub(crate) struct FakeDns {
    pub(crate) address: SocketAddr,
    says: Arc<Mutex<Says>>,
    asked: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    serving: Option<JoinHandle<()>>,
}

impl FakeDns {
    pub(crate) fn start(says: Says) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        socket.set_read_timeout(Some(Duration::from_millis(50))).expect("a time-out");
        let address = socket.local_addr().expect("it is bound");
        let (says, asked) = (Arc::new(Mutex::new(says)), Arc::new(AtomicUsize::new(0)));
        let stop = Arc::new(AtomicBool::new(false));
        let serving = std::thread::spawn({
            let (says, asked, stop) = (Arc::clone(&says), Arc::clone(&asked), Arc::clone(&stop));
            move || {
                let mut bytes = [0; 4_096];
                while !stop.load(Ordering::Relaxed) {
                    let Ok((len, from)) = socket.recv_from(&mut bytes) else { continue };
                    let question = Message::from_vec(&bytes[..len]).expect("a question");
                    let says = says.lock().expect("no thread panics").clone();
                    let answer = answer(&question, &says);
                    socket.send_to(&answer.to_vec().expect("a message"), from).expect("loopback takes it");
                    asked.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        Self { address, says, asked, stop, serving: Some(serving) }
    }

    pub(crate) fn say(&self, says: Says) {
        *self.says.lock().expect("no thread panics") = says;
    }

    /// Questions answered so far.
    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

fn answer(question: &Message, says: &Says) -> Message {
    let mut answer = Message::response(question.metadata.id, question.metadata.op_code);
    answer.metadata.response_code = says.code;
    answer.metadata.recursion_desired = true;
    answer.metadata.recursion_available = true;
    for query in &question.queries {
        answer.add_query(query.clone());
        answer.add_answers(says.records(query.name(), query.query_type()));
    }
    answer
}

impl Drop for FakeDns {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(serving) = self.serving.take() {
            serving.join().expect("it ends well");
        }
    }
}
