use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::time::Instant;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::*;
use crate::clients::ClientsPage;
use crate::in_namespaces::{inside, must, run_ignored_tests_of};

const EPOCH: Epoch = Epoch(1);

fn netlink(address: &str) -> Netlink {
    netlink_of(address, Arc::default())
}

fn netlink_of(address: &str, clients: Arc<KnownClients>) -> Netlink {
    let text = format!("address = \"{address}\"\ninterface = \"here\"");
    let config: NetlinkConfig = toml::from_str(&text).unwrap();
    config.build(clients).unwrap()
}

/// Two hosts on one link: ours with the interface `here`, and `peer` with `there`, where commands run by
/// `ip netns exec peer`. What the test before left is removed; the rest vanishes with this process.
fn two_hosts() {
    must(
        "[ -e /run/netns/peer ] && ip netns del peer || mount -t tmpfs none /run
        ip link del here 2> /dev/null || true
        ip netns add peer
        ip link add here type veth peer name there netns peer
        ip address add 10.77.0.1/24 dev here
        ip link set here up
        ip -n peer address add 10.77.0.2/24 dev there
        ip -n peer link set there up
        ip -n peer link set lo up
        ip link set lo up",
    );
}

fn mac_of(netns: &str, interface: &str) -> String {
    must(&format!("ip {netns} -o link show {interface} | sed 's/.*ether \\([^ ]*\\).*/\\1/'"))
        .trim()
        .to_owned()
}

async fn until_peer_knows(address: &str, mac: &str) {
    let begun = Instant::now();
    loop {
        let known = must(&format!("ip -n peer neighbour show {address} dev there"));
        if known.contains(mac) {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(5), "the peer still knows {known}");
        sleep(Duration::from_millis(20)).await;
    }
}

#[test]
fn bad_values_are_reported_together() {
    let text = "address = \"10.0.0.1\"\ninterface = \"a b\"\nprobe_for = \"1min\"\nannounce_every = \"0s\"";
    let problems = toml::from_str::<NetlinkConfig>(text).unwrap().build(Arc::default()).err().unwrap();
    assert_eq!(problems.len(), 4, "{problems:?}");
    assert!(toml::from_str::<NetlinkConfig>("adress = \"10.0.0.1/24\"").is_err());
}

#[tokio::test]
async fn an_interface_that_is_not_there_is_refused() {
    let mut netlink = netlink("10.77.0.50/24");
    netlink.config.interface = "no-such-if".to_owned();
    let error = netlink.check().await.unwrap_err();
    assert!(error.to_string().contains("this host has no interface no-such-if"), "{error}");
    assert!(netlink.release().await.is_ok());
}

#[test]
fn addresses_in_namespaces_of_their_own() {
    run_ignored_tests_of(module_path!());
}

/// As `two_hosts`, with a switch in the peer's place and, behind it, a host that has the address as well.
fn a_zombie() {
    two_hosts();
    must(
        "[ -e /run/netns/zombie ] && ip netns del zombie || true
        ip -n peer link add sw0 type bridge
        ip -n peer address flush dev there
        ip -n peer link set there master sw0
        ip -n peer address add 10.77.0.2/24 dev sw0
        ip -n peer link set sw0 up
        ip netns add zombie
        ip -n peer link add port type veth peer name z netns zombie
        ip -n peer link set port master sw0 up
        ip -n zombie address add 10.77.0.50/24 dev z
        ip -n zombie link set z up",
    );
}

#[tokio::test]
#[ignore = "run by addresses_in_namespaces_of_their_own"]
async fn a_zombie_that_speaks_up_is_answered_and_the_neighbours_keep_the_owner() {
    if !inside() {
        return;
    }
    a_zombie();
    must("ip -n zombie link set z down");
    let netlink = netlink("10.77.0.50/24");
    netlink.acquire(EPOCH).await.unwrap();
    netlink.defend().await.unwrap();
    netlink.defend().await.unwrap();
    assert!(netlink.here().await.unwrap());
    // What is told in the background is over, so that only the defence is left.
    replace(&netlink.announcing, None);
    let (ours, theirs) = (mac_of("", "here"), mac_of("-n zombie", "z"));
    assert_eq!(netlink.holder().await.unwrap(), None);

    // Its link heals, and it has something to say to the peer: it asks for it, and tells everybody its
    // own address by that.
    must("ip -n zombie link set z up");
    let begun = Instant::now();
    let mut kept = 0;
    while kept < 5 {
        must(
            "ip netns exec zombie bash -c 'ip neighbour flush dev z; echo x > /dev/udp/10.77.0.2/9' || true",
        );
        // This thread carries the defence as well, which needs a moment.
        sleep(DEFEND_EVERY * 2).await;
        let known = must("ip -n peer neighbour show 10.77.0.50 dev sw0");
        kept = if known.contains(&ours) { kept + 1 } else { 0 };
        assert!(begun.elapsed() < Duration::from_secs(20), "the peer knows {known}");
    }
    assert!(netlink.holder().await.unwrap().unwrap().contains(&theirs));
    netlink.release().await.unwrap();
    assert!(!netlink.here().await.unwrap() && !is_at_work(&netlink.defending));
}

#[tokio::test]
#[ignore = "run by addresses_in_namespaces_of_their_own"]
async fn an_address_moves_here_and_the_neighbour_learns_it() {
    if !inside() {
        return;
    }
    two_hosts();
    let netlink = netlink("10.77.0.50/24");
    // The neighbour has talked to the old owner a moment ago.
    must("ip -n peer neighbour replace 10.77.0.50 lladdr 02:00:00:00:00:99 dev there nud reachable");
    let found = netlink.check().await.unwrap();
    assert_eq!(found.text, "here is up, no host answers for 10.77.0.50");
    assert!(found.details.contains_key(UNANSWERED), "{found:?}");

    let begun = Instant::now();
    let note = netlink.acquire(EPOCH).await.unwrap();
    // Well below `announce_for`: nobody waits for the repetitions.
    assert!(begun.elapsed() < Duration::from_millis(1500), "it took {:?}", begun.elapsed());
    let mac = mac_of("", "here");
    assert!(note.text.contains("10.77.0.50/24 is on here now") && note.text.contains(&mac), "{}", note.text);
    until_peer_knows("10.77.0.50", &mac).await;

    let listener = std::net::TcpListener::bind("10.77.0.50:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    must(&format!("ip netns exec peer bash -c 'exec 3<>/dev/tcp/10.77.0.50/{port}'"));

    assert!(netlink.acquire(EPOCH).await.unwrap().text.contains("was on here already"));
    assert_eq!(netlink.check().await.unwrap().text, "here is up, 10.77.0.50 is here");
    assert!(netlink.release().await.unwrap().text.contains("was removed"));
    assert!(!must("ip address show here").contains("10.77.0.50"));
    assert!(must("ip address show here").contains("10.77.0.1/24"));
    assert!(netlink.release().await.unwrap().text.contains("is not on here"));
}

#[tokio::test]
#[ignore = "run by addresses_in_namespaces_of_their_own"]
async fn a_neighbour_that_missed_the_first_word_is_told_again() {
    if !inside() {
        return;
    }
    two_hosts();
    let netlink = netlink("10.77.0.51/24");
    netlink.acquire(EPOCH).await.unwrap();
    must("ip -n peer neighbour replace 10.77.0.51 lladdr 02:00:00:00:00:99 dev there nud reachable");
    until_peer_knows("10.77.0.51", &mac_of("", "here")).await;
}

#[tokio::test]
#[ignore = "run by addresses_in_namespaces_of_their_own"]
async fn an_address_that_another_host_has_is_refused() {
    if !inside() {
        return;
    }
    two_hosts();
    must("ip -n peer address add fd77::2/64 dev there nodad; ip address add fd77::1/64 dev here nodad");
    let mac = mac_of("-n peer", "there");
    for address in ["10.77.0.2/24", "fd77::2/64"] {
        let netlink = netlink(address);
        let error = netlink.acquire(EPOCH).await.unwrap_err();
        assert_eq!(error.kind(), "refused");
        assert!(error.to_string().contains(&format!("another host on here, {mac}, answers")), "{error}");
        let bare = address.split('/').next().unwrap();
        assert!(!must("ip address show here").contains(bare), "it was added all the same");
        let text = netlink.check().await.unwrap().text;
        assert!(text.ends_with(&format!("{bare} is at {mac}")), "{text}");
    }
}

#[tokio::test]
#[ignore = "run by addresses_in_namespaces_of_their_own"]
async fn a_network_whose_gateway_answers_for_a_host_that_is_off_is_told() {
    if !inside() {
        return;
    }
    two_hosts();
    let checked = async |address: &str| netlink(address).check().await.unwrap();
    // As a fabric does: with the gateway's own hardware address.
    must("ip -n peer address add 10.77.0.50/32 dev lo");
    let mac = mac_of("-n peer", "there");
    let found = checked("10.77.0.50/24").await;
    assert_eq!(found.text, format!("here is up, 10.77.0.50 is at {mac}"), "no gateway is known");

    must("ip route add default via 10.77.0.2 dev here");
    let found = checked("10.77.0.50/24").await;
    let said = format!("10.77.0.50 is at {mac}, and so is the gateway 10.77.0.2; WARNING: ");
    let told = found.to_string();
    assert!(told.contains(&said) && told.ends_with(DOES_NOT_FIT), "{told}");
    assert!(!found.details.contains_key(UNANSWERED), "{found:?}");
    assert!(checked("10.77.0.51/24").await.warnings.is_empty(), "nobody answers for this one");
    // The gateway's own address is its own.
    assert!(checked("10.77.0.2/24").await.warnings.is_empty());
}

#[tokio::test]
#[ignore = "run by addresses_in_namespaces_of_their_own"]
async fn an_ipv6_address_moves_here_and_is_usable_at_once() {
    if !inside() {
        return;
    }
    two_hosts();
    must("ip -n peer address add fd77::2/64 dev there nodad");
    must("ip -n peer neighbour replace fd77::50 lladdr 02:00:00:00:00:99 dev there nud stale");
    let netlink = netlink("fd77::50/64");
    netlink.acquire(EPOCH).await.unwrap();
    std::net::TcpListener::bind("[fd77::50]:0").unwrap();
    until_peer_knows("fd77::50", &mac_of("", "here")).await;
    netlink.release().await.unwrap();
    assert!(!must("ip address show here").contains("fd77::50"));
}

#[tokio::test]
#[ignore = "run by addresses_in_namespaces_of_their_own"]
async fn the_first_address_of_a_network_leaves_the_others_behind() {
    if !inside() {
        return;
    }
    two_hosts();
    must("echo 0 > /proc/sys/net/ipv4/conf/all/promote_secondaries");
    must("echo 0 > /proc/sys/net/ipv4/conf/here/promote_secondaries");
    let (first, second) = (netlink("10.78.0.1/24"), netlink("10.78.0.2/24"));
    first.acquire(EPOCH).await.unwrap();
    second.acquire(EPOCH).await.unwrap();
    assert!(must("ip address show here").contains("10.78.0.2/24 brd 10.78.0.255 scope global secondary"));
    first.release().await.unwrap();
    let left = must("ip address show here");
    assert!(left.contains("10.78.0.2/24") && !left.contains("10.78.0.1/24"), "{left}");
}

#[tokio::test]
#[ignore = "run by addresses_in_namespaces_of_their_own"]
async fn a_link_that_cannot_carry_it_is_refused() {
    if !inside() {
        return;
    }
    two_hosts();
    let netlink = netlink("10.77.0.52/24");
    must("ip -n peer link set there down");
    let error = netlink.acquire(EPOCH).await.unwrap_err();
    assert!(error.to_string().contains("here has no carrier"), "{error}");
    must("ip link set here down");
    let error = netlink.check().await.unwrap_err();
    assert!(error.to_string().contains("ip link set here up"), "{error}");
    must("ip address add 10.77.0.52/32 dev lo; ip link set here up; ip -n peer link set there up");
    let error = netlink.acquire(EPOCH).await.unwrap_err();
    assert!(error.to_string().contains("another interface of this host"), "{error}");
    must("ip address del 10.77.0.52/32 dev lo");
}

#[tokio::test]
#[ignore = "run by addresses_in_namespaces_of_their_own"]
async fn an_interface_beside_the_network_of_the_address_fails_the_check() {
    if !inside() {
        return;
    }
    two_hosts();
    // `here` is the management's; the brokers' network is on `data0`.
    must(
        "ip link add data0 type veth peer name far0
        ip link set data0 up
        ip link set far0 up
        ip address add 10.20.0.31/24 dev data0
        ip address add fd20::31/64 dev data0 nodad",
    );
    for (address, said) in [
        ("10.20.0.11/24", "10.20.0.0/24 is on data0 (10.20.0.31/24), not on here: set interface = \"data0\""),
        ("10.20.0.11/32", "10.20.0.0/24 is on data0 (10.20.0.31/24), not on here: set interface = \"data0\""),
        ("fd20::11/64", "fd20::/64 is on data0 (fd20::31/64), not on here: set interface = \"data0\""),
    ] {
        let error = netlink(address).check().await.unwrap_err();
        assert!(error.to_string().ends_with(said), "{error}");
        let mut right = netlink(address);
        right.config.interface = "data0".to_owned();
        let text = right.check().await.unwrap().to_string();
        assert!(text.starts_with("data0 is up, ") && !text.contains("WARNING"), "{text}");
    }
    // An interface that was made on the network's own shares its link.
    must("ip link add link data0 name broker0 type macvlan mode bridge; ip link set broker0 up");
    let mut child = netlink("10.20.0.11/24");
    child.config.interface = "broker0".to_owned();
    assert!(child.check().await.unwrap().warnings.is_empty());

    // An interface that is off, or leads nowhere, has no network: nothing shows which one is right.
    must("ip link set data0 down; ip address add 10.20.0.32/24 dev lo");
    let text = netlink("10.20.0.11/24").check().await.unwrap().to_string();
    assert!(text.contains("WARNING: no address of this host is in the network of 10.20.0.11/24"), "{text}");
    must("ip link del data0; ip address del 10.20.0.32/24 dev lo");
}

/// `two_hosts`, and a third one, `old`, on the same link, with the address.
fn and_an_old_owner(cidr: &str) {
    two_hosts();
    must(&format!(
        "[ -e /run/netns/old ] && ip netns del old || true
        ip netns add old
        ip -n peer link add bridge type bridge
        ip -n peer link set bridge up
        ip -n peer link add port type veth peer name eth netns old
        ip -n peer link set port up master bridge
        ip -n peer link set there master bridge
        ip -n peer address flush dev there
        ip -n peer address add 10.77.0.2/24 dev bridge
        ip -n peer address add fd77::2/64 dev bridge nodad
        ip address add fd77::1/64 dev here nodad
        ip -n old link set lo up
        ip -n old address add {cidr} dev eth $(echo {cidr} | grep -q : && echo nodad)
        ip -n old link set eth up"
    ));
}

/// What `make` makes in another namespace; sockets stay there.
fn within<T: Send + 'static>(netns: &str, make: impl FnOnce() -> T + Send + 'static) -> T {
    let namespace = std::fs::File::open(format!("/run/netns/{netns}")).unwrap();
    let made = std::thread::spawn(move || {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        make()
    });
    made.join().unwrap()
}

fn connect(at: std::net::SocketAddr) -> std::net::TcpStream {
    let begun = Instant::now();
    loop {
        match within("peer", move || std::net::TcpStream::connect(at)) {
            Ok(stream) => return stream,
            // An IPv6 link that was made a moment ago.
            Err(error) => assert!(begun.elapsed() < Duration::from_secs(5), "{error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A word of the old owner's agent that names this client.
fn word_of(client: &std::net::TcpStream) -> ClientsPage {
    let (own, client) = (client.peer_addr().unwrap(), client.local_addr().unwrap());
    let ports = [(client.ip(), [client.port()].into())].into();
    let connections = [(own, ports)].into();
    ClientsPage { host: "old".into(), connections, left_out: 0 }
}

#[tokio::test]
#[ignore = "run by addresses_in_namespaces_of_their_own"]
async fn clients_of_a_dead_owner_are_reset_and_those_of_a_living_one_are_not() {
    if !inside() {
        return;
    }
    for address in ["10.77.0.50/24", "fd77::50/64"] {
        and_an_old_owner(address);
        let at = std::net::SocketAddr::new(address.parse::<Cidr>().unwrap().address, 9092);
        let listener = within("old", move || std::net::TcpListener::bind(at).unwrap());
        let (mut told, untold) = (connect(at), connect(at));
        told.write_all(b"request").unwrap();
        let (mut served, _) = listener.accept().unwrap();
        served.read_exact(&mut [0; 7]).unwrap();
        must("ip -n old link set eth down");

        let clients = Arc::new(KnownClients::default());
        clients.remember(word_of(&told));
        let netlink = netlink_of(address, clients.clone());
        netlink.acquire(EPOCH).await.unwrap();
        let note = netlink.reset_clients().await.unwrap().text;
        assert!(note.starts_with("resetting 1 of its clients' connections (old, "), "{note}");
        // Later volleys are for frames that are lost, and here none is.
        assert_eq!(read_within(&told, Duration::from_secs(5)).await, Err(ErrorKind::ConnectionReset));
        // Nobody told of the other connection, so it still waits.
        assert_eq!(read_within(&untold, QUIET).await, Err(ErrorKind::WouldBlock));

        // The next owner's own connection is named as well, and goes on.
        let listener = std::net::TcpListener::bind(at).unwrap();
        let mut living = connect(at);
        let (mut served, _) = listener.accept().unwrap();
        clients.remember(word_of(&living));
        netlink.reset_clients().await.unwrap();
        assert_eq!(read_within(&living, QUIET).await, Err(ErrorKind::WouldBlock));
        living.write_all(b"request").unwrap();
        served.read_exact(&mut [0; 7]).unwrap();
        netlink.release().await.unwrap();
    }
}

/// In the time of two volleys.
const QUIET: Duration = Duration::from_millis(900);

async fn read_within(stream: &std::net::TcpStream, limit: Duration) -> Result<usize, ErrorKind> {
    let mut stream = stream.try_clone().unwrap();
    stream.set_read_timeout(Some(limit)).unwrap();
    let read = move || stream.read(&mut [0]).map_err(|error| error.kind());
    tokio::task::spawn_blocking(read).await.unwrap()
}

#[tokio::test]
#[ignore = "run by addresses_in_namespaces_of_their_own"]
async fn an_owner_whose_clients_nobody_knows_is_told() {
    if !inside() {
        return;
    }
    two_hosts();
    let note = netlink("10.77.0.50/24").reset_clients().await.unwrap().text;
    assert!(note.contains("no [[peer]] told of clients connected to it"), "{note}");
}
