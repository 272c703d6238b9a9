package configs_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/source"
)

func TestBGPFaults(t *testing.T) {
	const good = "[bgp]\nas = 64512\n[[bgp.peers]]\naddress = \"192.0.2.254\"\nas = 64500\n"
	many := "[bgp]\nas = 64512\n"
	for i := range 65 {
		many += fmt.Sprintf("[[bgp.peers]]\naddress = \"192.0.2.%d\"\nas = 1\n", i+1)
	}
	hundred := strings.TrimSuffix(strings.Repeat(`"1:1", `, 1), ", ")
	for i := range 100 {
		hundred += fmt.Sprintf(`, "2:%d"`, i)
	}
	tests := []struct{ name, text, want string }{
		{"good", good, ""},
		{"no peers", "[bgp]\nas = 64512", "2:6: warning: there are no peers, so nothing is announced; write [[bgp.peers]]"},
		{"no AS", "[bgp]\n[[bgp.peers]]\naddress = \"192.0.2.254\"\nas = 64500\n", "1:1: there are peers, and as is 0; write the number of the network that this host is in"},
		{"an AS under a misspelt key", strings.Replace(good, "as = 64512", "AS = 64512", 1), `2:1: unknown key "AS"; did you mean "as"?`},
		{"a peer under misspelt keys", strings.Replace(strings.Replace(good, "address", "Address", 1), "as = 64500", "As = 64500", 1), "4:1: unknown key \"Address\"; did you mean \"address\"?\n5:1: unknown key \"As\"; did you mean \"as\"?"},
		{"an AS that is reserved", "[bgp]\nas = 23456", "2:6: AS 23456 is reserved; want the number of your network, or a private one such as 64512"},
		{"an AS that is reserved, of a peer", strings.Replace(good, "64500", "65535", 1), "5:6: AS 65535 is reserved; want the number of your network, or a private one such as 64512"},
		{"an AS too large", "[bgp]\nas = 4294967295", "2:6: as is 4294967295; want 0 to 4294967294"},
		{"a router ID of IPv6", "[bgp]\nrouter_id = \"2001:db8::1\"", `2:13: router_id is "2001:db8::1"; want an IPv4 address, or ""`},
		{"a short hold time", "[bgp]\nhold_time = \"2s\"", `2:13: hold_time is "2s"; want 3s to 18h12m15s`},
		{"part of a second", "[bgp]\nhold_time = \"3500ms\"", `2:13: 3.5s is not a number of whole seconds; BGP counts no less`},
		{"a long restart", "[bgp]\ngraceful_restart = \"2h\"", `2:20: graceful_restart is "2h"; want 0s to 1h8m15s`},
		{"on_stop", "[bgp]\non_stop = \"gracefully\"", `2:11: unknown way to stop "gracefully"; want graceful or withdraw; did you mean "graceful"?`},
		{"a community", "[bgp]\ncommunities = [\"64512:65536\"]", `2:16: communities[0] is "64512:65536"; want two numbers of 0 to 65535 such as "64512:100", or graceful-shutdown, blackhole, no-export, no-advertise, no-export-subconfed or no-peer`},
		{"communities too many", "[bgp]\ncommunities = [" + hundred + "]", "2:15: there are 101 communities; want 100 at most"},
		{"peers too many", many, "3:1: there are 65 peers; want 64 at most"},
		{"a peer without AS", "[bgp]\nas = 1\n[[bgp.peers]]\naddress = \"192.0.2.254\"\n", `3:1: key "as" is missing`},
		{"a link-local peer", strings.Replace(good, "192.0.2.254", "fe80::1", 1), "4:11: fe80::1 is not the address of a router; want a global address of it; sessions over link-local ones are not supported"},
		{"a multicast peer", strings.Replace(good, "192.0.2.254", "224.0.0.1", 1), "4:11: 224.0.0.1 is not the address of a router; want a global address of it; sessions over link-local ones are not supported"},
		{"peers twice", good + "[[bgp.peers]]\naddress = \"192.0.2.254\"\nas = 64501\n", "7:11: 192.0.2.254 is already that of peers[0]"},
		{"a source of the other family", good + "source = \"2001:db8::1\"\n", "6:10: source is of the other family than address"},
		{"one hop", good + "multihop = 1\n", "6:12: multihop is 1; leave it out where the peer is directly connected, or want 2 to 255"},
		{"hops and TTL security", good + "multihop = 2\nttl_security = true\n", "7:16: ttl_security drops what passed a router, and multihop is for a peer behind one; leave one out"},
		{"hops of iBGP", strings.Replace(good, "64500", "64512", 1) + "multihop = 2\n", "6:12: multihop does nothing for a peer of our own AS; leave it out: packets to it may pass routers anyway"},
		{"local preference of eBGP", good + "local_preference = 200\n", "6:20: local_preference is for peers of our own AS; use med or communities"},
		{"a short hold time of a peer", good + "hold_time = \"1s\"\n", `6:13: hold_time is 1s; want "3s" at least, or "0s" for that of [bgp]`},
		{"a relative password file", good + "password_file = \"bgp.secret\"\n", `6:17: password_file is "bgp.secret"; want an absolute path`},
		{"a key that is none", good + "password = \"x\"\n", `6:1: unknown key "password"; did you mean "password_file"?`},
	}
	for _, tt := range tests {
		_, faults := configs.Parse("x", []byte(tt.text))
		var lines []string
		for _, f := range faults {
			lines = append(lines, strings.TrimPrefix(f.String(), "x:"))
		}
		if got := strings.Join(lines, "\n"); got != tt.want {
			t.Errorf("%s:\n got %s\nwant %s", tt.name, got, tt.want)
		}
	}
}

// A password is one line of a file that others cannot read, and is in no message.
func TestBGPPassword(t *testing.T) {
	const secret = "s3cret-of-the-router"
	path := filepath.Join(t.TempDir(), "bgp.secret")
	for _, tt := range []struct {
		text string
		mode os.FileMode
		want string // of the error
	}{
		{secret, 0o600, ""},
		{secret + "\n", 0o400, ""},
		{secret + "\r\n", 0o600, ""},
		{secret, 0o640, "has mode 0640, so others can use it: chmod 0600"},
		{secret, 0o604, "has mode 0604, so others can use it: chmod 0600"},
		{secret, 0o620, "has mode 0620, so others can use it: chmod 0600"},
		{"", 0o600, "does not hold one line of 1 to 80 bytes that can be printed"},
		{secret + "\n" + secret, 0o600, "does not hold one line of 1 to 80 bytes that can be printed"},
		{strings.Repeat("x", 81), 0o600, "does not hold one line of 1 to 80 bytes that can be printed"},
		{secret + "\x00", 0o600, "does not hold one line of 1 to 80 bytes that can be printed"},
	} {
		fatal.If(t, os.WriteFile(path, []byte(tt.text), 0o600))
		fatal.If(t, os.Chmod(path, tt.mode))
		b := configs.BGP{Peers: []configs.BGPPeer{{PasswordFile: path}}}
		got, err := b.Peers[0].Password()
		faults := b.CheckPasswords("svcproxy.toml")
		switch {
		case tt.want == "" && (err != nil || got != secret || len(faults) != 0):
			t.Errorf("%q, mode %o: %q, %v", tt.text, tt.mode, got, err)
		case tt.want != "" && (err == nil || got != "" || len(faults) != 1 || !strings.HasSuffix(err.Error(), tt.want) || strings.Contains(faults[0].String(), secret)):
			t.Errorf("%q, mode %o: %q, %v, %v; want %s", tt.text, tt.mode, got, err, faults, tt.want)
		}
	}
	missing := configs.BGPPeer{PasswordFile: filepath.Join(t.TempDir(), "none")}
	if _, err := missing.Password(); err == nil {
		t.Error("a file that is not there has a password")
	}
}

// What announces by BGP is warned of where there is none.
func TestWarnOfAnnounce(t *testing.T) {
	s := configs.Default()
	svc := &source.Service{Announce: source.BGP | source.L2}
	want := "not announced by BGP: no [bgp] in svcproxy.toml"
	if got := s.WarnOfAnnounce(svc); len(got) != 1 || got[0].Msg != want || !got[0].Warning {
		t.Errorf("without [bgp]: %+v", got)
	}
	s.BGP.AS = 64512
	if got := s.WarnOfAnnounce(svc); len(got) != 1 || got[0].Msg != "not announced by BGP: no [[bgp.peers]] in svcproxy.toml" {
		t.Errorf("without peers: %+v", got)
	}
	s.BGP.Peers = make([]configs.BGPPeer, 1)
	if got := s.WarnOfAnnounce(svc); len(got) != 0 {
		t.Errorf("with a peer: %+v", got)
	}
	svc.Announce, s.BGP = source.L2, configs.BGP{}
	if got := s.WarnOfAnnounce(svc); len(got) != 0 {
		t.Errorf("without announce = [\"bgp\"]: %+v", got)
	}
}
