//go:build netns

package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/test/history"
	"svcproxy.dev/svcproxy/test/lab"
	"svcproxy.dev/svcproxy/test/policy"
)

// TestJudgeKubeProxy has kube-proxy judged as svcproxy is, by what both have in common. What is found is in docs/judge.md:
// this test fails where kube-proxy does otherwise than docs/packets.md says.
func TestJudgeKubeProxy(t *testing.T) {
	for mode, theirs := range map[string]string{"nftables": "nftables", "iptables-nft": "iptables"} {
		t.Run(mode, func(t *testing.T) {
			history.Run(t, mode, func(t *testing.T) *history.Site { return newKubeProxySite(t, mode, theirs) })
		})
	}
}

func newKubeProxySite(t *testing.T, mode, theirs string) *history.Site {
	t.Helper()
	s, err := history.NewSite(mode)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	p := &kubeProxy{cluster: startCluster(t, s.Node), mode: theirs}
	t.Cleanup(func() { _ = p.Kill() })
	n := thisNode()
	n.Status.Addresses = append(n.Status.Addresses, core.NodeAddress{Type: core.NodeInternalIP, Address: lab.FrontAddr.V6.String()})
	p.put(n)
	s.Balancer, s.Kinds = p, []history.Kind{history.Kinds[0], history.Kinds[1], leaving, history.Kinds[3], history.Kinds[4]}
	s.Lanes = []history.Lane{history.ServiceFaults, history.HostFaults}
	s.Adapt = func(svc *source.Service) { svc.InCluster = true }
	s.AdaptHost = func(h *policy.Host) {
		h.LocalCIDRs = []netip.Prefix{netip.MustParsePrefix("10.4.0.0/16"), netip.MustParsePrefix("fd00:4::/64")}
		if theirs == "nftables" {
			h.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:96::/108")}
		}
	}
	s.Log = func() string {
		text, _ := os.ReadFile(p.path("kube-proxy.log"))
		return string(text[max(0, len(text)-20000):])
	}
	if err := errors.Join(s.PutAll(), p.Start()); err != nil {
		t.Fatalf("%v\n%s", err, s.Log())
	}
	return s
}

// leaving has endpoints that are not ready, or terminate.
func leaving(_ *history.Site, r *rand.Rand, svc *lab.Service) {
	for i := range svc.Endpoints {
		if e := &svc.Endpoints[i]; r.IntN(4) == 0 {
			e.Ready, e.Terminating = ptr(false), ptr(r.IntN(2) == 0)
		}
	}
}

// kubeProxy is kube-proxy as a Balancer: services are objects of an API server.
type kubeProxy struct {
	*cluster
	mode string
	proc *netnstest.Process // nil: it does not run
}

// Start implements history.Balancer.
func (p *kubeProxy) Start() error {
	cmd := exec.Command(binary(p.t, "kube-proxy"), "--kubeconfig="+p.kubeconfig("admin", adminToken), "--proxy-mode="+p.mode, "--hostname-override=node",
		"--cluster-cidr=10.4.0.0/16,fd00:4::/64", "--nodeport-addresses=0.0.0.0/0,::/0", "--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0")
	proc, err := p.node.Launch(cmd, p.path("kube-proxy.log"))
	if err != nil {
		return err
	}
	p.proc = proc
	return p.awaitKubeProxy(time.Minute)
}

// Stop implements history.Balancer.
func (p *kubeProxy) Stop() error { return p.end(unix.SIGTERM) }

// Kill implements history.Balancer.
func (p *kubeProxy) Kill() error { return p.end(unix.SIGKILL) }

func (p *kubeProxy) end(sig unix.Signal) error {
	if p.proc == nil {
		return nil
	}
	err := p.proc.Cmd.Process.Signal(sig)
	<-p.proc.Ended()
	p.proc = nil
	return err
}

// Freeze implements history.Balancer.
func (p *kubeProxy) Freeze() error { return p.proc.Cmd.Process.Signal(unix.SIGSTOP) }

// Thaw implements history.Balancer.
func (p *kubeProxy) Thaw() error { return p.proc.Cmd.Process.Signal(unix.SIGCONT) }

// Put implements history.Balancer.
func (p *kubeProxy) Put(svc lab.Service) error {
	ctx, services, slices := context.Background(), p.client.CoreV1().Services("default"), p.client.DiscoveryV1().EndpointSlices("default")
	o := serviceOf(svc)
	status := o.Status
	old, err := services.Get(ctx, o.Name, meta.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		o, err = services.Create(ctx, o, meta.CreateOptions{})
	case err == nil:
		o.ResourceVersion, o.Spec.HealthCheckNodePort = old.ResourceVersion, old.Spec.HealthCheckNodePort
		o, err = services.Update(ctx, o, meta.UpdateOptions{})
	}
	if err == nil && len(status.LoadBalancer.Ingress) > 0 {
		o.Status = status
		_, err = services.UpdateStatus(ctx, o, meta.UpdateOptions{})
	}
	for _, s := range slicesOf(svc) {
		if err != nil {
			break
		}
		if _, err = slices.Update(ctx, s, meta.UpdateOptions{}); apierrors.IsNotFound(err) {
			_, err = slices.Create(ctx, s, meta.CreateOptions{})
		}
	}
	if err != nil {
		return fmt.Errorf("giving the API server %s: %w", svc.Name, err)
	}
	return nil
}

// Delete implements history.Balancer.
func (p *kubeProxy) Delete(name string) error {
	return p.client.CoreV1().Services("default").Delete(context.Background(), name, meta.DeleteOptions{})
}

// serviceOf returns a service of the lab as Kubernetes has it.
func serviceOf(svc lab.Service) *core.Service {
	texts := func(addrs []netip.Addr) (list []string) {
		for _, a := range addrs {
			list = append(list, a.String())
		}
		return list
	}
	vips := texts(svc.VIPs)
	s := &core.Service{ObjectMeta: meta.ObjectMeta{Name: svc.Name}, Spec: core.ServiceSpec{
		ClusterIP: vips[0], ClusterIPs: vips, IPFamilies: []core.IPFamily{core.IPv4Protocol, core.IPv6Protocol},
		IPFamilyPolicy: ptr(core.IPFamilyPolicyRequireDualStack), ExternalIPs: texts(svc.ExternalIPs),
	}}
	for _, port := range svc.Ports {
		s.Spec.Ports = append(s.Spec.Ports, core.ServicePort{Name: port.Name, Protocol: core.Protocol(strings.ToUpper(port.Protocol)),
			Port: int32(port.Port), TargetPort: intstr.FromInt32(int32(port.TargetPort)), NodePort: int32(port.NodePort)})
	}
	if svc.SessionAffinity != "" {
		s.Spec.SessionAffinity = core.ServiceAffinityClientIP
	}
	if svc.ExternalTrafficPolicy == "local" {
		s.Spec.ExternalTrafficPolicy = core.ServiceExternalTrafficPolicyLocal
	}
	if svc.InternalTrafficPolicy == "local" {
		s.Spec.InternalTrafficPolicy = ptr(core.ServiceInternalTrafficPolicyLocal)
	}
	if len(svc.LoadBalancerIPs) > 0 {
		s.Spec.Type = core.ServiceTypeLoadBalancer
		for _, a := range svc.LoadBalancerIPs {
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, core.LoadBalancerIngress{IP: a.String()})
		}
		for _, r := range svc.LoadBalancerSourceRanges {
			s.Spec.LoadBalancerSourceRanges = append(s.Spec.LoadBalancerSourceRanges, r.String())
		}
	}
	return s
}

// slicesOf returns the endpoints of a service as Kubernetes has them, one slice for each family.
func slicesOf(svc lab.Service) (list []*discovery.EndpointSlice) {
	for _, family := range []discovery.AddressType{discovery.AddressTypeIPv4, discovery.AddressTypeIPv6} {
		s := &discovery.EndpointSlice{
			ObjectMeta:  meta.ObjectMeta{Name: svc.Name + "-" + strings.ToLower(string(family)), Labels: map[string]string{discovery.LabelServiceName: svc.Name}},
			AddressType: family, Endpoints: []discovery.Endpoint{},
		}
		for _, port := range svc.Ports {
			s.Ports = append(s.Ports, discovery.EndpointPort{Name: ptr(port.Name), Port: ptr(int32(port.TargetPort)), Protocol: ptr(core.Protocol(strings.ToUpper(port.Protocol)))})
		}
		for _, e := range svc.Endpoints {
			if e.Address.Is4() == (family == discovery.AddressTypeIPv4) {
				s.Endpoints = append(s.Endpoints, discovery.Endpoint{Addresses: []string{e.Address.String()}, NodeName: ptr(e.Node),
					Conditions: discovery.EndpointConditions{Ready: orTrue(e.Ready), Serving: ptr(true), Terminating: e.Terminating}})
			}
		}
		list = append(list, s)
	}
	return list
}

func orTrue(b *bool) *bool {
	if b == nil {
		return ptr(true)
	}
	return b
}
