package layout

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"svcproxy.dev/svcproxy/proxier/backendtest"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// A large delta goes in small transactions, except for services of which one takes
// over what another had.
func TestChunksOfADelta(t *testing.T) {
	w := backendtest.NewWorld(policy.IPv4)
	web := func(i int) *policy.Resolved { return backendtest.Web(w.Family, i, 10) }
	w.Put(web(0).Key, web(0))
	taker := web(0)
	taker.Key.Name = "taker"
	changed := map[source.Key]*policy.Resolved{web(0).Key: nil, taker.Key: taker}
	for i := 1; i < 10; i++ {
		changed[web(i).Key] = web(i)
	}
	delta := w.PutAll(changed)
	slices.SortFunc(delta.Services, func(a, b policy.ServiceChange) int { return strings.Compare(nameOf(a), nameOf(b)) })
	var got [][]string
	vips := 0
	for _, chunk := range Chunks(delta, 20) {
		var names []string
		for _, c := range chunk.Services {
			names = append(names, nameOf(c))
		}
		if n := elementsOf(chunk); n > 20 && len(names) != 2 {
			t.Errorf("a chunk of %d elements: %v", n, names)
		}
		vips += len(chunk.RefusedAddrs.Gained)
		if names != nil {
			got = append(got, names)
		}
	}
	want := [][]string{
		{"taker", "web-0"}, {"web-1"}, {"web-2"}, {"web-3"}, {"web-4"}, {"web-5"}, {"web-6"}, {"web-7"}, {"web-8"}, {"web-9"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("services of the chunks (-want +got):\n%s", diff)
	}
	if vips != len(delta.RefusedAddrs.Gained) {
		t.Errorf("chunks refuse on %d VIPs, the delta on %d", vips, len(delta.RefusedAddrs.Gained))
	}
	if whole := Chunks(delta, ChunkElements); len(whole) != 1 || whole[0] != delta {
		t.Errorf("a small delta goes in %d chunks", len(whole))
	}
}

func nameOf(c policy.ServiceChange) string {
	if c.New != nil {
		return c.New.Key.Name
	}
	return c.Old.Key.Name
}

// renamed returns a service with another name: it takes all over that the other had.
func renamed(res *policy.Resolved, key source.Key) *policy.Resolved {
	pools := map[*policy.Pool]*policy.Pool{}
	out := *res
	out.Key, out.Pools, out.Frontends = key, nil, nil
	for _, p := range res.Pools {
		q := *p
		q.ServicePort.Key = key
		pools[p] = &q
		out.Pools = append(out.Pools, &q)
	}
	for _, f := range res.Frontends {
		g := *f
		g.ServicePort.Key = key
		g.Outside.Pool, g.FromLocal.Pool = pools[f.Outside.Pool], pools[f.FromLocal.Pool]
		out.Frontends = append(out.Frontends, &g)
	}
	return &out
}
