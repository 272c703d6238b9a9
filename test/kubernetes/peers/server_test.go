package peers

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// What the server streams is what kube-proxy's own library reads: all objects, and changes.
func TestKubernetesPeersServer(t *testing.T) {
	all := makeServices(size{50, 3})
	s, err := newServer(all)
	if err != nil {
		t.Fatal(err)
	}
	api := httptest.NewServer(s)
	defer api.Close()
	defer api.CloseClientConnections()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: api.URL, ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeProtobuf}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	f := informers.NewSharedInformerFactory(client, 0)
	services, slices, nodes, cidrs := f.Core().V1().Services(), f.Discovery().V1().EndpointSlices(), f.Core().V1().Nodes(), f.Networking().V1().ServiceCIDRs()
	for _, i := range []interface{ HasSynced() bool }{services.Informer(), slices.Informer(), nodes.Informer(), cidrs.Informer()} {
		_ = i.HasSynced()
	}
	f.Start(ctx.Done())
	defer f.Shutdown()
	defer cancel()
	for kind, ok := range f.WaitForCacheSync(ctx.Done()) {
		if !ok {
			t.Fatalf("%s is not read: %q", kind, s.refused)
		}
	}
	if n := len(services.Informer().GetStore().ListKeys()); n != 50 {
		t.Errorf("%d services are read, want 50", n)
	}
	if o, err := cidrs.Lister().Get("kubernetes"); err != nil || o.Spec.CIDRs[0] != vips.String() {
		t.Errorf("ServiceCIDR: %v, %v", o, err)
	}
	svc, err := services.Lister().Services("default").Get(all[49].name())
	if err != nil || svc.Spec.ClusterIP != all[49].address().Addr().String() || svc.Spec.Ports[0].Port != vipPort {
		t.Errorf("the last service: %v, %v", svc, err)
	}

	all[7].move(1, 1)
	if _, err := s.change(&all[7]); err != nil {
		t.Fatal(err)
	}
	for {
		got, err := slices.Lister().EndpointSlices("default").Get(all[7].name() + "-abcde")
		if err != nil {
			t.Fatal(err)
		}
		if e := got.Endpoints; len(e) == 4 {
			if e[0].Addresses[0] != all[7].endpoints[0].String() || !*e[0].Conditions.Ready || *e[3].Conditions.Ready || !*e[3].Conditions.Terminating {
				t.Errorf("endpoints after a change: %v", e)
			}
			break
		}
		select {
		case <-ctx.Done():
			t.Fatal("the change is not read")
		case <-time.After(time.Millisecond):
		}
	}
	if _, err := client.CoreV1().Events("default").Create(ctx, &core.Event{ObjectMeta: meta.ObjectMeta{Name: "e"}}, meta.CreateOptions{}); err != nil {
		t.Errorf("an event: %v", err)
	}
	if len(s.refused) > 0 {
		t.Errorf("not answered: %q", s.refused)
	}
}

// A watch from a version on has what changed since, and a list is refused and noted.
func TestKubernetesPeersServerVersions(t *testing.T) {
	all := makeServices(size{3, 1})
	s, err := newServer(all)
	if err != nil {
		t.Fatal(err)
	}
	for i := range all {
		if _, err := s.change(&all[i]); err != nil {
			t.Fatal(err)
		}
	}
	for version, want := range map[string]int{"1000": 3, "1002": 1, "1003": 0, "": 3, "9999": 0} {
		k := s.kinds["endpointslices"]
		ctx, cancel := context.WithCancel(t.Context())
		r := httptest.NewRequestWithContext(ctx, "GET", "/apis/discovery.k8s.io/v1/endpointslices?watch=true&resourceVersion="+version, nil)
		cancel() // it is gone once it has what there is
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		size := 0
		for _, frame := range k.changes[3-want:] {
			size += len(frame)
		}
		if w.Body.Len() != size {
			t.Errorf("from version %q: %d bytes, want those of %d changes, %d", version, w.Body.Len(), want, size)
		}
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest("GET", "/api/v1/services?limit=500", nil))
	if w.Code != http.StatusNotImplemented || len(s.refused) != 1 {
		t.Errorf("a list: %d, noted %q", w.Code, s.refused)
	}
}
