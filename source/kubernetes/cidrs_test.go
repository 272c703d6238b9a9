//go:build !nokubernetes

package kubernetes

import (
	"net/netip"
	"slices"
	"sync"
	"testing"

	networking "k8s.io/api/networking/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The ranges that ClusterIPs come from are followed, after all services are known;
// not for a proxy that has some of the services only.
func TestServiceCIDRs(t *testing.T) {
	t.Parallel()
	cidr := func(name string, list ...string) *networking.ServiceCIDR {
		return &networking.ServiceCIDR{ObjectMeta: meta.ObjectMeta{Name: name}, Spec: networking.ServiceCIDRSpec{CIDRs: list}}
	}
	a := startAPIServer(t, svc("a", "10.96.0.1"), cidr("kubernetes", "10.96.0.0/16", "fd00:96::/108"))
	var mu sync.Mutex
	var told []netip.Prefix
	options := func() Options {
		o := at(a)
		o.OnServiceCIDRs = func(list []netip.Prefix) {
			mu.Lock()
			defer mu.Unlock()
			told = list
		}
		return o
	}
	is := func(want ...string) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			return slices.Equal(told, prefixes(want...))
		}
	}
	named := options()
	named.ProxyName = "mine"
	other := run(t, named)
	other.eventually("synced", func() bool { return other.src.Status().Synced })

	release := a.hold("services")
	defer release()
	r := run(t, options())
	r.eventually("listed the others", func() bool { return a.answered() >= 6 }) // three of each
	if !is()() {
		t.Errorf("told %v before services were known", told)
	}
	release()
	r.eventually("told", is("10.96.0.0/16", "fd00:96::/108"))
	a.put(cidr("more", "10.97.0.0/16", "10.96.0.0/16"))
	r.eventually("told more", is("10.96.0.0/16", "10.97.0.0/16", "fd00:96::/108"))
	a.delete(cidr("kubernetes"))
	r.eventually("told less", is("10.96.0.0/16", "10.97.0.0/16"))
}
