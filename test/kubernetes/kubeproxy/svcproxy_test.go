//go:build netns

package kubeproxy

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/loop"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/kubernetes"
)

// A held is what svcproxy would have the kernel hold.
type held struct {
	*policy.Node
	families map[policy.Family]*state
	checks   map[source.Key]loop.NodeHealth
}

// A state is what one backend was given.
type state struct {
	frontends map[address]*policy.Frontend
	hairpins  map[policy.Hairpin]bool
}

// An address is what a packet is sent to; without one: a port of the node.
type address struct {
	netip.Addr
	source.Protocol
	port uint16
}

func (a address) String() string {
	return fmt.Sprintf("%s/%s", netip.AddrPortFrom(a.Addr, a.port), a.Protocol)
}

// A firstHealth is told what health check node ports answer; nothing changes after the first.
type firstHealth struct {
	loop.Unobserved
	told chan []loop.NodeHealth
}

// NodeHealth implements loop.Observer.
func (h firstHealth) NodeHealth(list []loop.NodeHealth) {
	select {
	case h.told <- list:
	default: // it must not block
	}
}

// svcproxy returns what it makes of what there is, by way of an API server.
func svcproxy(c *cluster) (*held, error) {
	api := httptest.NewServer(&apiServer{c})
	defer api.Close()
	defer api.CloseClientConnections()
	h := &held{Node: c.proxierNode(), families: map[policy.Family]*state{}}
	src := kubernetes.New(kubernetes.Options{APIServer: api.URL, NodeName: nodeName})
	health := make(chan []loop.NodeHealth, 1)
	backends := map[policy.Family]proxier.Backend{}
	for _, f := range families {
		h.families[f.Family] = &state{}
		backends[f.Family] = &backend{state: h.families[f.Family]}
	}
	l := loop.New(loop.Config{
		Backends: backends, Node: h.Node, Sources: []string{kubernetes.Name}, LookInterval: time.Hour, SyncTimeout: time.Hour,
		Log: slog.New(slog.DiscardHandler), Observer: firstHealth{told: health},
	})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = l.Run(ctx) })
	wg.Go(func() { _ = src.Run(ctx, l) })
	defer wg.Wait()
	defer cancel()
	select {
	case <-l.Ready():
	case <-time.After(2 * time.Minute):
		return nil, fmt.Errorf("not ready: %+v", src.Status())
	}
	h.checks = map[source.Key]loop.NodeHealth{}
	for _, check := range <-health {
		h.checks[check.Key] = check
	}
	return h, nil
}

// proxierNode is the node as proxier knows it.
func (n *node) proxierNode() *policy.Node {
	out := &policy.Node{Name: nodeName, Zone: n.zone, MarkBit: 14}
	for _, f := range families {
		out.Addrs = append(out.Addrs, addr(f.primary), addr(f.second))
		out.NodePortAddrs = append(out.NodePortAddrs, addr(f.primary))
	}
	slices.SortFunc(out.Addrs, netip.Addr.Compare)
	slices.SortFunc(out.NodePortAddrs, netip.Addr.Compare)
	for _, p := range n.pods {
		out.LocalCIDRs = append(out.LocalCIDRs, netip.MustParsePrefix(p))
	}
	if n.bridge {
		out.LocalInterfaces = []string{bridge}
	}
	if n.masqueradeAll {
		out.Masquerade = source.MasqueradeAll
	}
	return out
}

// A backend keeps what it is given first.
type backend struct{ state *state }

func (b *backend) Sync(_ context.Context, st *policy.State, _ *policy.Delta) error {
	b.state.frontends, b.state.hairpins = map[address]*policy.Frontend{}, map[policy.Hairpin]bool{}
	for _, r := range st.Services {
		for _, f := range r.Frontends {
			b.state.frontends[address{f.Key.Addr, f.Key.Protocol, f.Key.Port}] = f
		}
	}
	for h := range st.Hairpins {
		b.state.hairpins[h] = true
	}
	return nil
}

func (b *backend) Look(context.Context) (bool, error)                            { return false, nil }
func (b *backend) Plan(context.Context, *policy.State) ([]proxier.Change, error) { return nil, nil }
func (b *backend) Cleanup(context.Context) error                                 { return nil }

// meets says what becomes of a packet to an address, by what there is of one service.
func (h *held) meets(owner string, f family, to address, p packet) outcome {
	out := outcome{action: "none", targets: map[netip.AddrPort]bool{}}
	st := h.families[f.Family]
	front := st.frontends[to]
	switch {
	case front == nil || front.ServicePort.Key.String() != owner:
		return out
	case front.Restricted && !slices.ContainsFunc(front.SourceRanges, func(r netip.Prefix) bool { return r.Contains(p.src) }):
		out.action = policy.Drop.String()
		return out
	}
	leg, local := front.Outside, h.isLocal(p)
	if local || p.fromHost {
		leg = front.FromLocal
	}
	out.action = leg.Action.String()
	if leg.Action != policy.Balance {
		return out
	}
	out.affinity = leg.Pool.Affinity
	for _, t := range leg.Pool.Targets {
		hairpin := t.Addr() == p.src && st.hairpins[policy.NewHairpin(t.AddrPort(), to.Protocol)]
		out.targets[t.AddrPort()] = hairpin || masquerades(leg.Masquerade, local, p.fromHost)
	}
	return out
}

func masquerades(m policy.Masquerade, local, fromHost bool) bool {
	switch m {
	case policy.NonLocal:
		return !local
	case policy.HostProcesses:
		return fromHost
	}
	return m == policy.Everyone
}

// isLocal reports whether the packet is from a local source.
func (h *held) isLocal(p packet) bool {
	return slices.Contains(h.LocalInterfaces, p.in) ||
		slices.ContainsFunc(h.LocalCIDRs, func(r netip.Prefix) bool { return r.Contains(p.src) })
}

// An apiServer lists what there is, and has nothing more to say.
type apiServer struct{ *cluster }

func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.FormValue("watch") != "" {
		a.watch(w, r)
		return
	}
	match, err := labels.Parse(r.FormValue("labelSelector"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	_ = json.NewEncoder(w).Encode(a.list(r.URL.Path, match)) // a client that is gone misses it in the test
}

// watch refuses to stream a list, as servers before 1.34 do, and else waits until the client goes.
func (a *apiServer) watch(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	if r.FormValue("sendInitialEvents") != "" {
		w.WriteHeader(http.StatusUnprocessableEntity)
		_ = json.NewEncoder(w).Encode(meta.Status{
			TypeMeta: meta.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: meta.StatusFailure,
			Reason: meta.StatusReasonInvalid, Code: http.StatusUnprocessableEntity, Message: "sendInitialEvents is forbidden",
		})
		return
	}
	w.(http.Flusher).Flush()
	<-r.Context().Done()
}

func (a *apiServer) list(path string, match labels.Selector) any {
	version := meta.ListMeta{ResourceVersion: "100"}
	switch {
	case strings.HasSuffix(path, "/services"):
		return &core.ServiceList{
			TypeMeta: meta.TypeMeta{Kind: "ServiceList", APIVersion: "v1"}, ListMeta: version,
			Items: matching(a.services, match, func(s *core.Service) labels.Set { return s.Labels }),
		}
	case strings.HasSuffix(path, "/endpointslices"):
		return &discovery.EndpointSliceList{
			TypeMeta: meta.TypeMeta{Kind: "EndpointSliceList", APIVersion: "discovery.k8s.io/v1"}, ListMeta: version,
			Items: matching(a.slices, match, func(s *discovery.EndpointSlice) labels.Set { return s.Labels }),
		}
	case strings.HasSuffix(path, "/nodes"):
		return &core.NodeList{TypeMeta: meta.TypeMeta{Kind: "NodeList", APIVersion: "v1"}, ListMeta: version}
	}
	return map[string]any{"kind": "ServiceCIDRList", "apiVersion": "networking.k8s.io/v1", "metadata": version, "items": []any{}}
}

func matching[T any](all []*T, match labels.Selector, of func(*T) labels.Set) []T {
	var out []T
	for _, o := range all {
		if match.Matches(of(o)) {
			out = append(out, *o)
		}
	}
	return out
}
