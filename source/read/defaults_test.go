package read

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/decode"
)

// A defaultSample has two values of a key of [defaults], and keys of a service to which it means something.
type defaultSample struct{ value, other, with string }

// defaultSamples are those of keys whose values, or services, cannot be any.
var defaultSamples = map[string]defaultSample{
	"namespace":                   {`"prod"`, `"default"`, ""},
	"labels":                      {`{ team = "a" }`, `{ tier = "b" }`, ""},
	"source_ranges":               {`["192.0.2.0/24"]`, `[]`, ""},
	"load_balancer_source_ranges": {`["192.0.2.0/24"]`, `[]`, `load_balancer_ips = ["10.97.0.1"]`},
	"external_traffic_policy":     {`"local"`, `"cluster"`, `external_ips = ["10.97.0.1"]`},
	"session_affinity_timeout":    {`"1h"`, `"2h"`, `session_affinity = "client_ip"`},
	"traffic_distribution":        {`"prefer_same_node"`, `""`, ""},
	"node_port_addresses":         {`["all"]`, `["primary"]`, onNodePorts},
	"scheduler":                   {`"rr"`, `""`, ""},
	"hash_on":                     {`"client_ip"`, `""`, `scheduler = "maglev"`},
	"scheduler_flags":             {`["sh-port"]`, `["sh-fallback"]`, `scheduler = "sh"`},
	"one_packet":                  {`true`, `false`, overUDP},
	"forward":                     {`"tunnel"`, `"masquerade"`, ""},
	"tunnel_type":                 {`"gre"`, `"ipip"`, `forward = "tunnel"`},
	"tunnel_port":                 {`6081`, `6082`, "forward = \"tunnel\"\ntunnel_type = \"gue\""},
	"close_connections":           {`"always"`, `"never"`, ""},
	"health_check":                {`{ type = "tcp" }`, `{ type = "none" }`, ""},
}

// overUDP are keys of services whose port is one of UDP, onNodePorts of those whose port is one of nodes too.
const (
	overUDP     = `forward = "direct"`
	onNodePorts = "# on node ports"
)

// twoServices is a file of services a and b, which have these keys.
func twoServices(defaults, keys string) string {
	port := "{ port = 80 }"
	if strings.Contains(keys, overUDP) {
		port = `{ port = 80, protocol = "udp" }`
	}
	service := func(name, addr string) string {
		port := port
		if strings.Contains(keys, onNodePorts) {
			port = "{ port = 80, node_port = 3000" + addr + " }"
		}
		keys := strings.ReplaceAll(keys, "10.97.0.1", "10.97.0."+addr)
		return "[[services]]\nname = \"" + name + "\"\nvips = [\"10.96.0." + addr + "\"]\nports = [" + port + "]\n" +
			"endpoints = [{ address = \"10.1.1.1\" }, { address = \"10.1.1.2\", tier = 1 }, { address = \"10.1.1.3\", tier = 1 }, { address = \"10.1.1.4\", tier = 2 }]\n" + keys + "\n"
	}
	return defaults + service("a", "1") + service("b", "2")
}

func same(a, b []*source.Service) bool {
	return slices.EqualFunc(a, b, func(a, b *source.Service) bool { return a.Equal(b) && a.SameNotes(b) })
}

// sampleOf returns the sample of a key. Where none is written here, any two values of its kind will do, the first of
// which is not what holds anyway.
func sampleOf(t *testing.T, f *decode.Field[service]) defaultSample {
	if sample, ok := defaultSamples[f.Key]; ok {
		return sample
	}
	standard := decode.TableOf(serviceFields, standardService).Schema.Properties
	is := standard[slices.IndexFunc(standard, func(p decode.Property) bool { return p.Key == f.Key })].Schema.Default
	var good []string
	for _, text := range someValues(f.Schema) {
		doc, faults := decode.TOML("x.toml", []byte("x = "+text))
		if faults != nil {
			t.Fatal(faults)
		}
		r, s := decode.NewReader(nil), standardService
		f.Read(r, doc.Root["x"], &s)
		if !r.Failed() && !reflect.DeepEqual(doc.Root["x"], is) {
			good = append(good, text)
		}
	}
	if is != nil && len(good) == 1 {
		good = append(good, fmt.Sprintf("%#v", is))
	}
	if len(good) < 2 {
		t.Fatalf("[defaults] has the key %s, and this test too few values of it: %q", f.Key, good)
	}
	return defaultSample{good[0], good[1], ""}
}

// someValues returns values that a key of this schema may have, as TOML writes them.
func someValues(s decode.Schema) (list []string) {
	switch {
	case s.Type == "boolean":
		return []string{"true", "false"}
	case s.Type == "integer":
		return []string{fmt.Sprint(*s.Minimum), fmt.Sprint(*s.Minimum + 1)}
	case s.Type == "array":
		for _, v := range someValues(*s.Items) {
			list = append(list, "["+v+"]")
		}
		return list
	case s.Enum != nil:
		for _, word := range s.Enum {
			list = append(list, strconv.Quote(word))
		}
		return list
	}
	return []string{`"10s"`, `"20s"`, `"10m"`, `"20m"`, `"2h"`, `"3h"`} // times
}

// A default is what each service of the file would say itself, and what one says goes first.
func TestDefaults(t *testing.T) {
	for i := range defaultFields {
		key := defaultFields[i].Key
		sample := sampleOf(t, &defaultFields[i])
		parsed := func(defaults, keys string) (list []*source.Service) {
			inBoth(t, twoServices(defaults, keys), func(t *testing.T, path string, data []byte) {
				services, faults, known := Rules{}.ParseNew(context.Background(), path, data, nil)
				if len(faults) > 0 || len(services) != 2 || len(known) != 2 {
					t.Fatalf("%s: %s\n%v, %d services, %d known", key, data, faults, len(services), len(known))
				}
				compareChunks(t, data, path == "a.json")
				list = append(list, services...)
			})
			return list
		}
		line := func(value string) string { return key + " = " + value + "\n" }
		plain, own, other := parsed("", sample.with), parsed("", line(sample.value)+sample.with), parsed("", line(sample.other)+sample.with)
		byDefault, over := parsed("[defaults]\n"+line(sample.value), sample.with), parsed("[defaults]\n"+line(sample.value), line(sample.other)+sample.with)
		switch {
		case !same(byDefault, own):
			t.Errorf("%s of [defaults] is not what it is in each service: %+v, want %+v", key, *byDefault[0], *own[0])
		case same(byDefault, plain):
			t.Errorf("%s of [defaults] changes nothing", key)
		case !same(over, other):
			t.Errorf("%s of [defaults] goes before that of a service: %+v, want %+v", key, *over[0], *other[0])
		}
	}
}

// A default that means nothing to a service is not for it: no fault, no warning, and no other service.
func TestNeedlessDefaults(t *testing.T) {
	const all = `[defaults]
load_balancer_source_ranges = ["192.0.2.0/24"]
external_traffic_policy = "local"
session_affinity_timeout = "1h"
traffic_distribution = "prefer_same_zone"
hash_on = "client_ip"
one_packet = true
tunnel_type = "gue"
tunnel_port = 6081
min_up = 9
slow_start = "10s"
close_connections = "failed"
announce = ["bgp"]
`
	const keys = "[[services]]\nname = \"a\"\nscheduler = \"sh\"\nports = [{ port = 80, node_port = 30000 }]\nendpoints = [\"10.1.1.1\"]\n"
	for _, tt := range []struct{ defaults, service string }{
		{all, keys},
		{strings.Replace(all, `"failed"`, `"always"`, 1), strings.Replace(strings.Replace(keys, ", node_port = 30000", "", 1), "ports", `vips = ["10.96.0.1"]`+"\nports", 1)},
		{"[defaults]\ninternal_traffic_policy = \"local\"\nslow_start = \"1s\"\nhealth_check = { type = \"tcp\" }\n", keys},
	} {
		services, faults := Parse("a.toml", []byte(tt.defaults+tt.service))
		if len(faults) > 0 {
			t.Fatalf("%s%v", tt.defaults+tt.service, faults)
		}
		s := services[0]
		if len(s.LoadBalancerSourceRanges) > 0 || s.Affinity != 0 || s.HashOn != source.NotHashed || s.Forward != (source.Forwarding{}) || s.Announce != 0 && len(s.VIPs) == 0 {
			t.Errorf("%s%+v", tt.defaults+tt.service, *s)
		}
	}
}

// The addresses of node ports are those of a health check node port too, which may be the only one.
func TestDefaultOfHealthCheckNodePort(t *testing.T) {
	const defaults, service = "[defaults]\nnode_port_addresses = [\"all\"]\n", "[[services]]\nname = \"a\"\nexternal_ips = [\"10.97.0.1\"]\n" +
		"external_traffic_policy = \"local\"\nports = [{ port = 80 }]\nendpoints = [\"10.1.1.1\"]\n"
	for keys, want := range map[string]bool{"": false, "health_check_node_port = 32000\n": true} {
		services, faults := Parse("a.toml", []byte(defaults+service+keys))
		if len(faults) > 0 {
			t.Fatal(faults)
		}
		if got := services[0].NodePortAddresses != nil; got != want {
			t.Errorf("%qit has addresses of its own: %v, want %v", keys, got, want)
		}
	}
}

// What a service claims has no default: two services cannot have it.
func TestClaimsHaveNoDefault(t *testing.T) {
	for _, key := range []string{"name", "vips", "external_ips", "load_balancer_ips", "ports", "endpoints", "health_check_node_port"} {
		if !hasKey(serviceFields, key) || hasKey(defaultFields, key) {
			t.Errorf("%s is no key of a service, or one of [defaults]", key)
		}
	}
}

// A version whose defaults lack a restriction may be half written, though no service has changed.
func TestDefaultsThatMayBePartial(t *testing.T) {
	version := func(defaults string) *Version {
		services, faults := Parse("a.toml", []byte(twoServices(defaults, `load_balancer_ips = ["10.97.0.1"]`)))
		if len(faults) > 0 {
			t.Fatal(faults)
		}
		return &Version{Services: services}
	}
	const affinity = "[defaults]\nsession_affinity = \"client_ip\"\n"
	for _, tt := range []struct {
		was  string
		want bool
	}{
		{`load_balancer_source_ranges = ["192.0.2.0/24"]`, true},
		{`internal_traffic_policy = "local"`, true},
		{`external_traffic_policy = "local"`, true},
		{`health_check = { type = "tcp" }`, true},
		{`min_up = 2`, false},
	} {
		with, without := version(affinity+tt.was+"\n"), version(affinity)
		if got := with.Exceeds(without); got != tt.want {
			t.Errorf("without %s: %v, want %v", tt.was, got, tt.want)
		}
		if without.Exceeds(with) {
			t.Errorf("%s is added, and that waits", tt.was)
		}
	}
}

// A change of defaults is read by each service that has none of its own, and by no other file.
func TestChangedDefaultsOfTraffic(t *testing.T) {
	read := func(text string, before KnownServices) ([]*source.Service, KnownServices) {
		services, faults, known := Rules{}.ParseNew(context.Background(), "a.toml", []byte(text), before)
		if len(faults) > 0 || len(services) != 2 {
			t.Fatal(faults)
		}
		return services, known
	}
	text := strings.Replace(twoServices("[defaults]\nscheduler = \"rr\"\n", ""), "name = \"b\"", "name = \"b\"\nscheduler = \"sh\"", 1)
	_, known := read(text, nil)
	services, _ := read(strings.Replace(text, `"rr"`, `"lc"`, 1), known)
	if services[0].Scheduler != "lc" || services[1].Scheduler != "sh" {
		t.Errorf("schedulers %q and %q", services[0].Scheduler, services[1].Scheduler)
	}
}
