package configs_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/read"
)

// known returns the keys and tables of svcproxy.toml, and the sources and modes that it can ask for.
func known() (keys, sources, modes []string) {
	for _, p := range configs.Schema().Properties {
		keys = append(keys, p.Key)
		switch p.Key {
		case "sources":
			sources = p.Schema.Items.Enum
		case "mode":
			modes = p.Schema.Enum
		}
	}
	return keys, sources, modes
}

// every is settings in which no key has its default.
func every() configs.Settings {
	ofSources := configs.Default().OfSources // of which some keys may have no zero
	ofSources.HTTP = configs.HTTP{
		URLs: []string{"https://config.example.net/svc/index.json", "http://[::1]:8080/web.toml"}, Interval: time.Minute, Timeout: 1500 * time.Millisecond,
		CAFile: "/etc/svcproxy/ca.pem", CertFile: "/etc/svcproxy/cert.pem", KeyFile: "/etc/svcproxy/key.pem", BearerFile: "/etc/svcproxy/token",
		PublicKey: "RWTcw9yO5zBiCtmA3JbYJ8/nXGfK7IpfnI6eZIcz6C1lWGwkgXoqm5fG", MaxSize: 1 << 30,
	}
	ofSources.Kubernetes = configs.Kubernetes{Kubeconfig: "/etc/kübe \"config\"", APIServer: "https://[fd00::1]:6443", ProxyName: "svcproxy"}
	ofSources.Etcd = configs.Etcd{
		Endpoints: []string{"https://10.0.0.1:2379", "https://[fd00::1]:2379"}, Prefix: "/a \"b\"/", CAFile: "/ca.pem", CertFile: "/cert.pem", KeyFile: "/key.pem",
		Username: "h\u00f6st", PasswordFile: "/password",
	}
	return configs.Settings{
		Mode: "ipvs", Sources: []string{"kubernetes", "file"}, NodeName: "node-a", Zone: "East",
		Families:   []string{"ipv6"},
		LocalCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}, LocalInterfaces: []string{"eth0", "veth*"},
		Masquerade: "never", MasqueradeBit: 0, ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")},
		NodePortAddresses: []string{"all", "192.168.0.0/16"}, LocalhostNodePorts: true, HTTPAddress: "", MetricsAddress: "[::1]:10249", StatusAddress: "[::1]:10250", HTTPNames: []string{"lb.example.com"},
		Metrics: configs.Metrics{Traffic: true, MaxServices: 5, ServiceLabels: []string{"team", "example.com/tier"}},
		Sync:    configs.Sync{MinInterval: 1500 * time.Millisecond, ResyncInterval: 90 * time.Minute},
		IPVS: configs.IPVS{
			Scheduler: "mh", StrictARP: true, SloppyTCP: true, TCPTimeout: time.Hour, TCPFinTimeout: time.Minute, UDPTimeout: time.Second, DrainTimeout: 24 * time.Hour,
		},
		Conntrack: configs.Conntrack{
			Max: 1 << 20, TCPEstablishedTimeout: 24 * time.Hour, TCPCloseWaitTimeout: time.Hour, UDPTimeout: 30 * time.Second,
			UDPStreamTimeout: 3 * time.Minute, TCPBeLiberal: false, TCPLoose: true,
		},
		Init:      configs.Init{Forwarding: false},
		OfSources: ofSources,
		History:   configs.History{Keep: 1000},
		Guard:     configs.Guard{Removals: 99, Apply: "manual", AllowEmpty: []string{"kubernetes"}},
		BGP: configs.BGP{
			AS: 64512, RouterID: netip.MustParseAddr("192.0.2.1"), Port: 1179, HoldTime: 3 * time.Second, OnStop: "withdraw", Communities: []string{"64512:100", "no-export"},
			Peers: []configs.BGPPeer{
				{
					Address: netip.MustParseAddr("192.0.2.254"), AS: 4200000000, Port: 1790, Source: netip.MustParseAddr("192.0.2.1"), Multihop: 255,
					PasswordFile: "/etc/svcproxy/bgp.secret", HoldTime: time.Minute, Communities: []string{"1:2"}, MED: 4294967295,
				},
				{Address: netip.MustParseAddr("2001:db8::1"), AS: 64512, Port: 179, TTLSecurity: true, LocalPreference: 200},
			},
		},
		Owners: []read.Owner{
			{
				Files: []string{"team-a-*.toml", "\u00fc \"[a-z]?.json"}, Sources: []string{"https://config.example.net/team-a/"}, Users: []string{"team-a", "1001"},
				Addresses: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/28"), netip.MustParsePrefix("2001:db8::/48")}, NodePorts: read.PortRange{First: 30000, Last: 30099},
				Namespaces: []string{"team-a", "a-*", "*"}, Allow: []string{"exec", "announce", "fetch"},
			},
			{Files: []string{"*"}, Namespaces: []string{"default"}},
		},
		Health: configs.Health{ExecUser: "svcproxy-check"},
		Limits: read.Limits{FileSize: 1 << 30, Services: 2, Endpoints: 3, Ports: 65535, Frontends: 4, FrontendEndpoints: 1_000_000_000, FrontendSourceRanges: 5},
		Notify: configs.Notify{Command: []string{"/usr/local/bin/page \"it\"", "-a", ""}, URL: "https://[fd00::1]:8443/a?b=c", Timeout: 1500 * time.Millisecond},
		Log:    configs.Log{Level: "debug", Format: "json"},
	}
}

func TestFormat(t *testing.T) {
	tests := []struct {
		name string
		want configs.Settings
	}{
		{"defaults", configs.Default()},
		{"every key", every()},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			text := configs.Format(tt.want)
			got, faults := configs.Parse("svcproxy.toml", text)
			if faults != nil {
				t.Fatalf("%v\n%s", faults, text)
			}
			if diff := cmp.Diff(tt.want, got, comparePrefix); diff != "" {
				t.Errorf("read back (-want +got):\n%s%s", diff, text)
			}
		})
	}
}

func TestFormatText(t *testing.T) {
	s := configs.Default()
	s.NodeName = "node-a"
	s.LocalCIDRs = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	text := string(configs.Format(s))
	for _, want := range []string{"mode = \"auto\"\n", "local_cidrs = [\"10.0.0.0/8\"]\n", "service_cidrs = []\n", "masquerade_bit = 14\n", "\n[sync]\nmin_interval = \"0s\"\n", "drain_timeout = \"15m\"\n", "tcp_be_liberal = true\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func TestSettingsFaults(t *testing.T) {
	keys, sources, modes := known()
	answers := "want the name of a source with a server (" + source.Either(slices.DeleteFunc(slices.Clone(sources), func(name string) bool { return name == "file" })) +
		"), or a URL that one is asked for"
	tests := []struct{ name, in, want string }{
		{"nothing", "", ""},
		{"comments", "# x\n", ""},
		{"unknown", "made = 'ipvs'\n[sink]\n", "1:1: unknown key \"made\"; did you mean \"mode\"?\n2:1: unknown key \"sink\"; did you mean \"sync\"?\n"},
		{"services", "[[services]]\n", "1:1: unknown key \"services\"; want " + source.Either(keys) + "\n"},
		{"unknown in a table", "[sync]\ninterval = '1s'\n", "2:1: unknown key \"interval\"; want min_interval or resync_interval\n"},
		{"table as value", "sync = 1\n", "1:8: sync is 1, a number; want a table\n"},
		{"dotted keys", "sync.resync_interval = '0s'\n", "1:24: resync_interval is \"0s\"; want 1s to 24h\n"},
		{"mode", "mode = 'nft'\n", "1:8: unknown mode \"nft\"; want " + source.Either(modes) + "; did you mean \"nftables\"?\n"},
		{"sources", "sources = ['file', 'k8s', 'file']\n", "1:20: unknown source \"k8s\"; want " + source.Either(sources) + "\n1:27: sources[2] is the same as sources[0]\n"},
		{"answers that may be empty", "[guard]\nallow_empty = ['kubernetes', 'https://config.example.net/a.json', 'k8s', 'nfs://x/']\n",
			"2:67: allow_empty[2] is \"k8s\"; " + answers + "\n2:74: allow_empty[3] is \"nfs://x/\"; " + answers + "\n"},
		{"what is notified", "[notify]\ncommand = ['page', 'a\\u0000']\nurl = 'http://u:p@h/'\ntimeout = '2m'\n",
			"2:12: the program \"page\" is not an absolute path; it is not looked for, and no shell runs it: write it as /usr/bin/NAME\n" +
				"3:7: url is \"http://u:p@h/\"; want a URL without a user, such as \"https://alerts.example.net/svcproxy\", or \"\"\n4:11: timeout is \"2m\"; want 100ms to 1m\n"},
		{"an argument with a NUL", "[notify]\ncommand = ['/page', \"a\\u0000\"]\n", "2:21: \"a\\x00\" has a NUL, which no argument can have\n"},
		{"no sources", "sources = []\nfamilies = []\n", "1:11: the list is empty; want one at least\n2:12: the list is empty; want one at least\n"},
		{"node name", "node_name = 'a b'\nzone = 'x;y'\n", "1:13: node_name is \"a b\"; want 1 to 253 letters, digits, -, _ and .\n2:8: zone is \"x;y\"; want letters, digits, -, _ and .\n"},
		{"empty node name", "node_name = ''\n", "1:13: node_name is \"\"; want 1 to 253 letters, digits, -, _ and .\n"},
		{"ranges", "local_cidrs = ['10.0.0.1/8']\nservice_cidrs = ['::/0']\n", "1:16: \"10.0.0.1/8\" has bits set behind its length of 8; write \"10.0.0.0/8\"\n" +
			"2:18: \"::/0\" holds every address, and all that no service has are refused; write the range that VIPs come from\n"},
		{"range twice", "local_cidrs = ['10.0.0.0/8', '10.0.0.0/8']\n", "1:30: local_cidrs[1] is the same as local_cidrs[0]\n"},
		{"labels of services", "[metrics]\nservice_labels = ['team', 'a.b/c-d', 'a/b', 'A/b']\n",
			"2:45: service_labels[3] is \"A/b\"; want the key of a label, such as team or example.com/team\n"},
		{"labels of services with one name", "[metrics]\nservice_labels = ['a-b', 'c', 'a.b']\n",
			"2:31: \"a-b\" and \"a.b\" are both label_a_b in metrics; leave out one of them\n"},
		{"many labels of services", "[metrics]\nservice_labels = ['1', '2', '3', '4', '5', '6', '7', '8', '9']\n", "2:18: service_labels has 9 labels; at most 8\n"},
		{"a flowtable", "[nftables]\nflowtable = ['eth0', 'veth*', 'a-name-too-long-', 'a b', 'eth0', 'br-0.1_x']\n",
			faultsAt(2, map[string]string{"22": `flowtable[1] is "veth*"`, "31": `flowtable[2] is "a-name-too-long-"`, "51": `flowtable[3] is "a b"`},
				`want a name of at most 15 letters, digits, -, _ and ., such as "eth0"`) + "2:58: flowtable[4] is the same as flowtable[0]\n"},
		{"a flowtable of many", "[nftables]\nflowtable = [" + interfaces(255) + "]\n", ""},
		{"a flowtable of too many", "[nftables]\nflowtable = [" + interfaces(256) + "]\n", "2:13: flowtable has 256 interfaces; at most 255\n"},
		{"interfaces", "local_interfaces = ['eth0 ', '*', 'a-name-too-long-', 'a\"', '..', '-j', 'eth+', 'e*h', 'abcdefghijklmno*', 'br-0.1_x']\n",
			faultsAt(1, map[string]string{"21": `local_interfaces[0] is "eth0 "`, "30": `local_interfaces[1] is "*"`, "35": `local_interfaces[2] is "a-name-too-long-"`,
				"55": `local_interfaces[3] is "a\""`, "61": `local_interfaces[4] is ".."`, "67": `local_interfaces[5] is "-j"`, "73": `local_interfaces[6] is "eth+"`, "81": `local_interfaces[7] is "e*h"`},
				`want a name of at most 15 letters, digits, -, _ and ., or the beginning of names and *, such as "veth*"`)},
		{"masquerade", "masquerade = true\nmasquerade_bit = 32\n", "1:14: masquerade is true, a boolean; want a string\n2:18: masquerade_bit is 32; want 0 to 31\n"},
		{"node port addresses", "node_port_addresses = ['primry', '10.0.0.1', 'all', 1]\n", "1:24: unknown node port addresses \"primry\"; want \"primary\", \"all\" or a range such as \"10.0.0.0/8\"\n" +
			"1:34: \"10.0.0.1\" is not a range of addresses; write \"10.0.0.1/32\" for this one address\n1:53: node_port_addresses[3] is 1, a number; want a range as a string, such as \"10.0.0.0/8\"\n"},
		{"http address", "http_address = 'localhost:80'\n", "1:16: http_address is \"localhost:80\"; want an IP address and a port, such as \"127.0.0.1:10349\", or \"\"\n"},
		{"http port", "http_address = '[::1]:65536'\n", "1:16: http_address is \"[::1]:65536\"; want an IP address and a port, such as \"127.0.0.1:10349\", or \"\"\n"},
		{"status address", "status_address = 'no'\n", "1:18: status_address is \"no\"; want an IP address and a port, such as \"127.0.0.1:10349\", \"auto\" or \"\"\n"},
		{"every host", "http_address = ':80'\n", ""},
		{"scheduler", "[ipvs]\nscheduler = ''\ntcp_timeout = '1ms'\nudp_timeout = '577h'\n", "2:13: unknown scheduler \"\"; want rr, wrr, lc, wlc, lblc, lblcr, dh, sh, mh, sed, nq, fo, ovf or twos\n" +
			"3:15: 1ms is not a number of whole seconds; the kernel counts no less\n4:15: udp_timeout is \"577h\"; want 0s to 576h\n"},
		{"conntrack", "[conntrack]\nmax = -1\ntcp_be_liberal = 1\n", "2:7: max is -1; want 0 to 2147483647\n3:18: tcp_be_liberal is 1, a number; want true or false\n"},
		{"kubernetes", "[kubernetes]\nkubeconfig = 'config'\napi_server = '10.0.0.1:6443'\nproxy_name = '-'\n", "2:14: kubeconfig is \"config\"; want an absolute path\n" +
			"3:14: api_server is \"10.0.0.1:6443\"; want a URL, such as \"https://10.0.0.1:6443\"\n4:14: proxy_name is \"-\"; want letters, digits, -, _ and .\n"},
		{"http", "[http]\nurls = ['https://h/a.toml', 'https://u@h/a.toml', 'h/a.toml', 'https://h/a.toml']\ninterval = '10ms'\nca_file = 'ca.pem'\npublic_key = 'RW'\nmax_size = '16MB'\n",
			"2:29: \"https://u@h/a.toml\" is not the URL of a service file or an index; a URL has no user or password; write bearer_file\n" +
				"2:51: \"h/a.toml\" is not the URL of a service file or an index; want https://HOST/PATH\n2:63: urls[3] is the same as urls[0]\n3:12: interval is \"10ms\"; want 100ms to 24h\n" +
				"4:11: ca_file is \"ca.pem\"; want an absolute path\n5:14: public_key is \"RW\"; want the second line of a public key of minisign, or \"\"\n" +
				"6:12: max_size is \"16MB\", which is not a size; want a number and B, KiB, MiB or GiB, such as \"16MiB\"\n"},
		{"http size", "[http]\nmax_size = '1023B'\ntimeout = '0s'\n", "2:12: max_size is \"1023B\"; want 1KiB to 1GiB\n3:11: timeout is \"0s\"; want 100ms to 1h\n"},
		{"log", "log.level = 'warning'\nlog.format = 'logfmt'\n", "1:13: unknown log level \"warning\"; want debug, info, warn or error\n2:14: unknown log format \"logfmt\"; want text or json\n"},
		{"limits", "[limits]\nfile_size = 0\nservices = '1'\nendpoints = 10000001\nports = 65536\nvips = 1\n", "2:13: file_size is 0; want 1 to 1073741824\n3:12: services is \"1\", a string; want a number from 1 to 10000000\n" +
			"4:13: endpoints is 10000001; want 1 to 10000000\n5:9: ports is 65536; want 1 to 65535\n6:1: unknown key \"vips\"; want file_size, services, endpoints, ports, frontends, frontend_endpoints or frontend_source_ranges\n"},
		{"too large", "#" + strings.Repeat("-", 1<<20), " the file has more than 1048576 bytes\n"},
		{"syntax", "mode = ipvs\n", "1:8: \"ipvs\" stands without quotes; write \"ipvs\"\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, faults := configs.Parse("s", []byte(tt.in))
			var b strings.Builder
			for _, f := range faults {
				fmt.Fprintln(&b, strings.TrimPrefix(f.String(), "s:"))
			}
			if b.String() != tt.want {
				t.Errorf("faults\n got: %s\nwant: %s", b.String(), tt.want)
			}
			if diff := cmp.Diff(configs.Default(), got, comparePrefix); faults != nil && diff != "" {
				t.Errorf("not the defaults in spite of faults:\n%s", diff)
			}
		})
	}
}

// faultsAt lists faults of one line, by column, that have the same hint.
func faultsAt(line int, byCol map[string]string, hint string) string {
	var b strings.Builder
	for col := range 200 {
		if msg, ok := byCol[fmt.Sprint(col)]; ok {
			fmt.Fprintf(&b, "%d:%d: %s; %s\n", line, col, msg, hint)
		}
	}
	return b.String()
}

func TestLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "svcproxy.toml")
	got, faults, err := configs.Load(path)
	if diff := cmp.Diff(configs.Default(), got, comparePrefix); diff != "" || faults != nil || err != nil {
		t.Errorf("without a file: %v, %v\n%s", faults, err, diff)
	}
	fatal.If(t, os.WriteFile(path, []byte("\ufeffmode = 'ipvs'\nnode_name = 'Node-A'\nlocal_cidrs = []\n"), 0o600))
	want := configs.Default()
	want.Mode, want.NodeName = "ipvs", "node-a"
	got, faults, err = configs.Load(path)
	if diff := cmp.Diff(want, got, comparePrefix); diff != "" || faults != nil || err != nil {
		t.Errorf("with a file: %v, %v\n%s", faults, err, diff)
	}
	if _, _, err = configs.Load(filepath.Dir(path)); err == nil || !strings.HasPrefix(err.Error(), "reading settings: ") {
		t.Errorf("a directory: %v", err)
	}
}

func TestDefaultNodeName(t *testing.T) {
	host, err := os.Hostname()
	fatal.If(t, err)
	if got := configs.Default().NodeName; got != strings.ToLower(host) {
		t.Errorf("node name %q on host %q", got, host)
	}
}

func TestLocalhostNodePortsNeedIptables(t *testing.T) {
	tests := []struct{ mode, want string }{
		{"auto", ""}, {"iptables", ""},
		{"nftables", `localhost_node_ports is for iptables mode, and mode is "nftables"`},
		{"ipvs", `localhost_node_ports is for iptables mode, and mode is "ipvs"`},
	}
	for _, tt := range tests {
		s := configs.Default()
		s.Mode, s.LocalhostNodePorts = tt.mode, true
		got := ""
		if err := s.Check(); err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("mode %s: %q, want %q", tt.mode, got, tt.want)
		}
		s.LocalhostNodePorts = false
		if err := s.Check(); err != nil {
			t.Errorf("mode %s without localhost_node_ports: %v", tt.mode, err)
		}
	}
}

// Keys of [http] that need each other.
func TestHTTPKeysTogether(t *testing.T) {
	for want, h := range map[string]configs.HTTP{
		"": {URLs: []string{"http://127.0.0.1/a.toml", "http://localhost:8080/a.toml", "http://[::1]/a.toml", "https://h/a.toml"}, CertFile: "/c", KeyFile: "/k", BearerFile: "/t"},
		"[http] cert_file and key_file belong together, and one is not set":                         {CertFile: "/c"},
		"[http] bearer_file would be sent in clear text to http://192.0.2.1/a.toml; write https://": {URLs: []string{"http://192.0.2.1/a.toml"}, BearerFile: "/t"},
	} {
		s, got := configs.Default(), ""
		if s.HTTP = h; len(h.URLs) > 0 {
			s.Sources = []string{"http"}
		}
		if err := s.Check(); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// One thing is notified.
func TestNotifyKeysTogether(t *testing.T) {
	s := configs.Default()
	s.Notify.Command = []string{"/bin/true"}
	if err := s.Check(); err != nil {
		t.Error(err)
	}
	s.Notify.URL = "http://127.0.0.1/"
	if err := s.Check(); err == nil || err.Error() != "[notify] has command and url; write one of them" {
		t.Error(err)
	}
}

// A program that others can change is warned of, and so is one that settings of others name.
func TestWarnOfNotifyProgram(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	fatal.If(t, err)
	path, program := filepath.Join(dir, "svcproxy.toml"), filepath.Join(dir, "page")
	fatal.If(t, os.WriteFile(path, []byte("[notify]\ncommand = ['"+program+"']\n"), 0o600))
	for _, tt := range []struct {
		ofSettings, ofProgram os.FileMode // 0: it is not there
		want                  string
	}{
		{0o600, 0o700, ""},
		{0o600, 0, strconv.Quote(program) + ": no such file or directory"},
		{0o600, 0o777, program + " can be changed by everybody"},
		{0o666, 0o700, path + " can be changed by everybody"},
	} {
		_ = os.Remove(program)
		if tt.ofProgram != 0 {
			fatal.If(t, os.WriteFile(program, nil, 0o700))
			fatal.If(t, os.Chmod(program, tt.ofProgram))
		}
		fatal.If(t, os.Chmod(path, tt.ofSettings))
		s, faults, err := configs.Load(path)
		got := ""
		for _, f := range faults {
			got = strings.TrimPrefix(f.Msg, "svcproxy cannot run the program of [notify] on this host: ")
		}
		if err != nil || got != tt.want || source.AnyError(faults) || len(s.Notify.Command) != 1 {
			t.Errorf("%v %v: %v, %q, want %q", tt.ofSettings, tt.ofProgram, err, got, tt.want)
		}
	}
}

func TestHTTPNeedsURLs(t *testing.T) {
	s := configs.Default()
	s.Sources = []string{"file", "http"}
	if err := s.Check(); err == nil || err.Error() != `sources has "http", and [http] has no urls` {
		t.Error(err)
	}
}

// A scheduler that passes weights over is named where they differ.
func TestWarnOfWeights(t *testing.T) {
	endpoints := func(weights ...uint16) []source.Endpoint {
		var list []source.Endpoint
		for _, w := range weights {
			list = append(list, source.Endpoint{Weight: w})
		}
		return list
	}
	tests := []struct {
		setting, scheduler string
		weights            []uint16
		mode               string
		warns              bool
	}{
		{"wrr", "rr", []uint16{1, 2}, "ipvs", true},
		{"rr", "", []uint16{1, 2}, "ipvs", true},
		{"rr", "wlc", []uint16{1, 2}, "ipvs", false},
		{"wrr", "", []uint16{1, 2}, "ipvs", false},
		{"lc", "", []uint16{2, 0, 2}, "ipvs", false},
		{"dh", "", []uint16{1, 2}, "nftables", false},
		{"dh", "", nil, "ipvs", false},
	}
	for _, tt := range tests {
		s := configs.Settings{IPVS: configs.IPVS{Scheduler: tt.setting}}
		got := s.Warn(&source.Service{Scheduler: tt.scheduler, Endpoints: endpoints(tt.weights...)}, tt.mode)
		if (len(got) > 0) != tt.warns || tt.warns && !got[0].Warning {
			t.Errorf("%+v: %+v", tt, got)
		}
	}
}

// A mode refuses what only another can do.
func TestModesRefuseKeysOfOthers(t *testing.T) {
	tests := []struct {
		scheduler string
		modes     []string
		want      string
	}{
		{"", []string{"iptables"}, ""},
		{"rr", []string{"ipvs"}, ""},
		{"rr", []string{"nftables", "ipvs"}, ""},
		{"wwr", []string{"ipvs"}, `scheduler: unknown scheduler "wwr"; want rr, wrr, lc, wlc, lblc, lblcr, dh, sh, mh, sed, nq, fo, ovf, twos or maglev; did you mean "wrr"?`},
		{"maglv", []string{"ipvs"}, `scheduler: unknown scheduler "maglv"; want rr, wrr, lc, wlc, lblc, lblcr, dh, sh, mh, sed, nq, fo, ovf, twos or maglev; did you mean "maglev"?`},
		{"maglev", []string{"nftables"}, ""},
		{"maglev", []string{"ipvs"}, ""},
		{"maglev", []string{"nftables", "ipvs", "iptables"}, ""},
		{"maglev", []string{"iptables"}, "scheduler: scheduler maglev is for nftables or ipvs mode, and this is iptables mode; leave it out"},
		{"rr", []string{"iptables"}, "scheduler: scheduler is for ipvs mode, and this is iptables mode; leave it out"},
		{"rr", []string{"nftables", "iptables"}, "scheduler: scheduler is for ipvs mode, and this is nftables or iptables mode; leave it out"},
	}
	for _, tt := range tests {
		got := ""
		for _, p := range configs.Refuse(&source.Service{Scheduler: tt.scheduler}, tt.modes...) {
			got += p.Path.String() + ": " + p.Msg + "; " + p.Hint
		}
		if got != tt.want {
			t.Errorf("scheduler %q in %q\n got: %s\nwant: %s", tt.scheduler, tt.modes, got, tt.want)
		}
	}
}

// Where the mode is not known, a key that some modes refuse is a warning that says which.
func TestWarnOfModes(t *testing.T) {
	const (
		maglev = `scheduler: mode is "auto", and only nftables or ipvs mode accepts scheduler; write mode = "nftables" in svcproxy.toml, or leave the key out: iptables mode refuses the file`
		ipvs   = `mode is "auto", and only ipvs mode accepts %s; write mode = "ipvs" in svcproxy.toml, or leave the key out: nftables or iptables mode refuses the file`
	)
	limited := []source.Endpoint{{}, source.Endpoint{}.With(source.Extras{MaxConnections: 5})}
	for _, tt := range []struct {
		svc  source.Service
		want []string
	}{
		{source.Service{}, nil},
		{source.Service{Scheduler: "maglev"}, []string{maglev}},
		{source.Service{Scheduler: "rr"}, []string{"scheduler: " + fmt.Sprintf(ipvs, "scheduler")}},
		{source.Service{Scheduler: "maglev", Endpoints: limited}, []string{maglev, "endpoints[1].max_connections: " + fmt.Sprintf(ipvs, "max_connections")}},
		{source.Service{Scheduler: "wwr"}, nil}, // a fault in every mode
	} {
		var got []string
		for _, p := range configs.WarnOfModes(&tt.svc, "nftables", "ipvs", "iptables") {
			got = append(got, p.Path.String()+": "+p.Msg+"; "+p.Hint)
			if !p.Warning {
				t.Errorf("%s: is a fault", p.Msg)
			}
		}
		slices.Sort(got)
		slices.Sort(tt.want)
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("scheduler %q (-want +got):\n%s", tt.svc.Scheduler, diff)
		}
	}
}

// Endpoints answer clients themselves in ipvs mode only.
func TestForwardNeedsIPVS(t *testing.T) {
	for _, tt := range []struct {
		method source.ForwardMethod
		modes  []string
		want   string
	}{
		{source.ForwardMasquerade, []string{"nftables"}, ""},
		{source.ForwardDirect, []string{"ipvs"}, ""},
		{source.ForwardTunnel, []string{"nftables", "ipvs"}, ""},
		{source.ForwardDirect, []string{"nftables"}, `forward: forward = "direct" is for ipvs mode, and this is nftables mode; leave it out`},
		{source.ForwardTunnel, []string{"nftables", "iptables"}, `forward: forward = "tunnel" is for ipvs mode, and this is nftables or iptables mode; leave it out`},
	} {
		got := ""
		for _, p := range configs.Refuse(&source.Service{Forward: source.Forwarding{Method: tt.method}}, tt.modes...) {
			got += p.Path.String() + ": " + p.Msg + "; " + p.Hint
		}
		if got != tt.want {
			t.Errorf("%v in %q\n got: %s\nwant: %s", tt.method, tt.modes, got, tt.want)
		}
	}
}

// What only IPVS can do is a fault elsewhere, each key at its place.
func TestRefuseKeysOfIPVS(t *testing.T) {
	svc := &source.Service{
		Scheduler: "sh", SchedulerFlags: source.SHPort, OnePacket: true,
		Endpoints: []source.Endpoint{{}, source.Endpoint{}.With(source.Extras{MaxConnections: 5, MinConnections: 1}), source.Endpoint{}.With(source.Extras{MaxConnections: 5})},
	}
	for _, modes := range [][]string{{"ipvs"}, {"nftables", "ipvs"}, {"nftables"}, {"iptables"}} {
		var got, want []string
		for _, p := range configs.Refuse(svc, modes...) {
			got = append(got, p.Path.String()+": "+p.Msg+"; "+p.Hint)
		}
		if !slices.Contains(modes, "ipvs") {
			const text = "%s: %s is for ipvs mode, and this is %s mode; leave it out"
			for _, at := range []string{"scheduler", "scheduler_flags", "one_packet", "endpoints[1].max_connections"} {
				want = append(want, fmt.Sprintf(text, at, at[strings.LastIndex(at, ".")+1:], modes[0]))
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("in %q (-want +got):\n%s", modes, diff)
		}
	}
}

// Who has everybody masqueraded is told whom that does not concern.
func TestWarnOfForward(t *testing.T) {
	for _, tt := range []struct {
		masquerade string
		method     source.ForwardMethod
		want       int
	}{
		{"all", source.ForwardDirect, 1}, {"all", source.ForwardTunnel, 1}, {"all", source.ForwardMasquerade, 0}, {"auto", source.ForwardDirect, 0},
	} {
		s := configs.Settings{Masquerade: tt.masquerade}
		got := s.Warn(&source.Service{Forward: source.Forwarding{Method: tt.method}}, "ipvs")
		if len(got) != tt.want || tt.want > 0 && !got[0].Warning {
			t.Errorf("masquerade %q, forward %v: %+v, want %d", tt.masquerade, tt.method, got, tt.want)
		}
	}
}

// interfaces returns the names of n interfaces, as a list has them.
func interfaces(n int) string {
	var list strings.Builder
	for i := range n {
		fmt.Fprintf(&list, "'e%d', ", i)
	}
	return list.String()
}

// Unless it is set, the status page is where only this host can ask.
func TestStatusAt(t *testing.T) {
	for _, tt := range []struct{ status, health, want string }{
		{configs.Auto, "127.0.0.1:10349", "127.0.0.1:10349"},
		{configs.Auto, "[::1]:1", "[::1]:1"},
		{configs.Auto, "[::ffff:127.0.0.2]:1", "[::ffff:127.0.0.2]:1"},
		{configs.Auto, "0.0.0.0:10256", ""},
		{configs.Auto, "192.0.2.1:1", ""},
		{configs.Auto, ":1", ""},
		{configs.Auto, "", ""},
		{"", "127.0.0.1:10349", ""},
		{"192.0.2.1:2", "127.0.0.1:10349", "192.0.2.1:2"},
	} {
		s := configs.Settings{StatusAddress: tt.status, HTTPAddress: tt.health}
		if got := s.StatusAt(); got != tt.want {
			t.Errorf("status_address %q, http_address %q: %q, want %q", tt.status, tt.health, got, tt.want)
		}
	}
}
