//! Frames to and from one interface, through a packet socket.

use std::io::{self, Read};
use std::net::IpAddr;
use std::time::Duration;

use socket2::{Domain, SockAddr, SockAddrStorage, SockFilter, Socket, Type, socklen_t};
use tokio::io::unix::AsyncFd;
use tokio::time::timeout;

use super::neighbour::{
    ETHERTYPE_IPV6, ICMPV6, ICMPV6_TYPE_AT, Mac, NEIGHBOUR_ADVERTISEMENT, NEXT_HEADER_AT, announcements,
    ethertype, owner, probe,
};

/// Questions asked within the time that `ask` has: on a busy link one frame may be lost.
const QUESTIONS: u32 = 3;

/// Frames that are taken in at once, at most.
const DRAIN: usize = 1_000;

/// Sends and receives the frames about one address on one interface. Needs `CAP_NET_RAW`.
pub(super) struct Wire {
    socket: AsyncFd<Socket>,
    address: IpAddr,
    mac: Mac,
}

impl Wire {
    /// Opens it on the interface with this index and Ethernet address.
    pub(super) fn open(index: u32, mac: Mac, address: IpAddr) -> io::Result<Self> {
        let ethertype = ethertype(address);
        // Without a protocol nothing is received until `bind` names interface and protocol together.
        let socket = Socket::new(Domain::from(libc::AF_PACKET), Type::RAW, None)?;
        socket.set_nonblocking(true)?;
        if ethertype == ETHERTYPE_IPV6 {
            socket.attach_filter(&only_advertisements())?;
        }
        socket.bind(&link_address(index, ethertype)?)?;
        Ok(Self { socket: register(socket)?, address, mac })
    }

    /// Asks the link for `patience` whether another host has the address, and who. Without patience, does not
    /// ask.
    pub(super) async fn ask(&self, patience: Duration) -> io::Result<Option<Mac>> {
        if patience.is_zero() {
            return Ok(None);
        }
        for _ in 0..QUESTIONS {
            self.send(&probe(self.address, self.mac)).await?;
            if let Ok(answer) = timeout(patience / QUESTIONS, self.answer()).await {
                return answer.map(Some);
            }
        }
        Ok(None)
    }

    /// Tells the link that the address is here.
    pub(super) async fn announce(&self) -> io::Result<()> {
        for frame in announcements(self.address, self.mac) {
            self.send(&frame).await?;
        }
        Ok(())
    }

    /// The address that it is about.
    pub(super) fn address(&self) -> IpAddr {
        self.address
    }

    /// Asks once, and waits for no answer.
    pub(super) async fn question(&self) -> io::Result<()> {
        self.send(&probe(self.address, self.mac)).await
    }

    /// Takes in what has come, without waiting: whether another host said in it that it has the address.
    pub(super) fn heard_meanwhile(&self) -> bool {
        let mut frame = [0; 256];
        let mut heard = false;
        // Bounded: a flood must not keep this task busy for ever.
        for _ in 0..DRAIN {
            let Ok(length) = self.socket.get_ref().read(&mut frame) else { break };
            heard |= owner(&frame[..length], self.address).is_some_and(|mac| mac != self.mac);
        }
        heard
    }

    async fn send(&self, frame: &[u8]) -> io::Result<()> {
        loop {
            let mut ready = self.socket.writable().await?;
            match ready.try_io(|socket| socket.get_ref().send(frame)) {
                Ok(sent) => return sent.map(drop),
                Err(_would_block) => {}
            }
        }
    }

    /// Waits for a frame in which another host says that it has the address.
    pub(super) async fn answer(&self) -> io::Result<Mac> {
        let mut frame = [0; 256];
        loop {
            let mut ready = self.socket.readable().await?;
            let Ok(length) = ready.try_io(|socket| socket.get_ref().read(&mut frame)) else { continue };
            let other = owner(&frame[..length?], self.address).filter(|mac| *mac != self.mac);
            if let Some(mac) = other {
                return Ok(mac);
            }
        }
    }
}

/// Lets nothing but neighbour advertisements through: on a busy host the answer would be lost in the rest.
fn only_advertisements() -> [SockFilter; 6] {
    // Values of <linux/bpf_common.h>, which are small by definition.
    let load_byte = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
    let jump_if_equal = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    let answer = (libc::BPF_RET | libc::BPF_K) as u16;
    [
        SockFilter::new(load_byte, 0, 0, NEXT_HEADER_AT as u32),
        SockFilter::new(jump_if_equal, 0, 3, u32::from(ICMPV6)),
        SockFilter::new(load_byte, 0, 0, ICMPV6_TYPE_AT as u32),
        SockFilter::new(jump_if_equal, 0, 1, u32::from(NEIGHBOUR_ADVERTISEMENT)),
        SockFilter::new(answer, 0, 0, u32::MAX),
        SockFilter::new(answer, 0, 0, 0),
    ]
}

#[allow(unsafe_code)]
pub(super) fn register(socket: Socket) -> io::Result<AsyncFd<Socket>> {
    // SAFETY: a `Socket` owns its descriptor and keeps it open until it is dropped, and nothing in here
    // takes the socket out of the `AsyncFd` or puts another one in.
    Ok(unsafe { AsyncFd::register(socket) }?)
}

/// The address of frames of one type on one interface.
#[allow(unsafe_code)]
fn link_address(index: u32, ethertype: u16) -> io::Result<SockAddr> {
    let family = u16::try_from(libc::AF_PACKET).map_err(io::Error::other)?;
    let index = i32::try_from(index).map_err(io::Error::other)?;
    let length = socklen_t::try_from(size_of::<libc::sockaddr_ll>()).map_err(io::Error::other)?;
    let mut storage = SockAddrStorage::zeroed();
    // SAFETY: `sockaddr_ll` is one of the platform's socket addresses, and all zeros is a valid one.
    let link = unsafe { storage.view_as::<libc::sockaddr_ll>() };
    link.sll_family = family;
    link.sll_protocol = ethertype.to_be();
    link.sll_ifindex = index;
    // SAFETY: the storage was just filled in as the family that it names, and the length is that type's.
    Ok(unsafe { SockAddr::new(storage, length) })
}
