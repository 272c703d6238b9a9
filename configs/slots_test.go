package configs_test

import (
	"net/netip"
	"testing"

	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/source"
)

// What would fill the kernel's memory with slots is refused where slots are elements of maps.
func TestRefuseSlots(t *testing.T) {
	service := func(scheduler string, addrs, ports, endpoints int, external source.TrafficPolicy) *source.Service {
		return &source.Service{
			Scheduler: scheduler, VIPs: make([]netip.Addr, addrs), Ports: make([]source.Port, ports),
			Endpoints: make([]source.Endpoint, endpoints), ExternalTrafficPolicy: external,
		}
	}
	nodePort := service(source.Maglev, 0, 16, 501, source.Cluster)
	for i := range nodePort.Ports {
		nodePort.Ports[i].NodePort = 30000
	}
	tests := []struct {
		name  string
		svc   *source.Service
		modes []string
		want  bool
	}{
		{"few", service(source.Maglev, 2, 100, 20, source.Cluster), []string{"nftables"}, false}, // 1,638,200
		{"many ports", service(source.Maglev, 2, 1000, 6, source.Cluster), []string{"nftables"}, true},
		{"many endpoints", service(source.Maglev, 2, 16, 501, source.Cluster), []string{"nftables"}, true}, // 2,096,672
		{"of two policies", service(source.Maglev, 2, 100, 20, source.Local), []string{"nftables"}, true},
		{"node ports", nodePort, []string{"nftables"}, true},
		{"of ipvs", service(source.Maglev, 2, 1000, 6, source.Cluster), []string{"ipvs"}, false},
		{"of one or the other", service(source.Maglev, 2, 1000, 6, source.Cluster), []string{"nftables", "ipvs"}, false},
		{"drawn at random", service("", 2, 1000, 6, source.Cluster), []string{"nftables"}, false},
	}
	for _, tt := range tests {
		if got := len(configs.Refuse(tt.svc, tt.modes...)) > 0; got != tt.want {
			t.Errorf("%s: refused is %v, want %v", tt.name, got, tt.want)
		}
	}
}
