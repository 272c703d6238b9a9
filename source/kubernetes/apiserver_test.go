//go:build !nokubernetes

package kubernetes

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"maps"
	"math/big"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	networking "k8s.io/api/networking/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"svcproxy.dev/svcproxy/internal/echotest"
	"svcproxy.dev/svcproxy/internal/fatal"
)

// An object is one of those that the API server of tests has.
type object interface {
	meta.Object
	runtime.Object
}

// An apiServer speaks list and watch as an API server does, in JSON, and can
// fail in the ways of one. Watches get what happened after their version as long
// as that is not compacted.
type apiServer struct {
	t    *testing.T
	addr string
	http *http.Server

	listener net.Listener

	mu      sync.Mutex
	changed *sync.Cond
	version int
	objects map[string]map[string]object // by resource, by namespace/name
	events  []event
	oldest  int                      // events up to this version are forgotten
	epoch   int                      // watches of earlier ones end
	gates   map[string]chan struct{} // of resources whose answers wait
	streams bool                     // lists may be streamed, as since 1.34
	nulls   bool                     // items of an empty list are null
	lists   int                      // answered, of all resources
	token   string                   // asked for; empty: none
	busy    int                      // says to ask again after so many seconds; 0: answers
	turned  []time.Time              // when a client was told so
	written []string                 // posted bodies
	tls     *tls.Config              // nil: plain HTTP
}

type event struct {
	version  int
	resource string
	kind     string
	obj      object
}

var servers atomic.Int32

func startAPIServer(t *testing.T, objects ...object) *apiServer {
	a := &apiServer{t: t, version: 100, objects: map[string]map[string]object{}, gates: map[string]chan struct{}{}, streams: true}
	a.changed = sync.NewCond(&a.mu)
	for _, o := range objects {
		a.put(o)
	}
	pid := os.Getpid() // an address of its own: nobody takes it while it is away
	a.listen(fmt.Sprintf("127.%d.%d.%d:6443", 2+pid>>8%200, pid%256, servers.Add(1)))
	t.Cleanup(a.stop)
	return a
}

func (a *apiServer) listen(addr string) {
	l, err := echotest.Listen(addr)
	if err != nil {
		a.t.Fatal(err)
	}
	a.addr, a.listener = l.Addr().String(), l
	if a.tls != nil {
		l = tls.NewListener(l, a.tls)
	}
	server := &http.Server{Handler: a, ErrorLog: log.New(io.Discard, "", 0)}
	a.http = server
	go func() { _ = server.Serve(l) }()
}

// stop cuts all connections.
func (a *apiServer) stop() {
	a.cut()
	_ = a.listener.Close() // the server may not have taken it over yet, or close it itself
	_ = a.http.Close()
}

// start listens where it did before.
func (a *apiServer) start() { a.listen(a.addr) }

// cut ends all watches.
func (a *apiServer) cut() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.epoch++
	a.changed.Broadcast()
}

// compact forgets all events, so that a watch of an earlier version is answered 410 Gone.
func (a *apiServer) compact() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	a.oldest, a.events = a.version, nil
}

// hold makes answers about a resource wait until the function it returns is called.
func (a *apiServer) hold(resource string) (release func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	gate := make(chan struct{})
	a.gates[resource] = gate
	return sync.OnceFunc(func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.gates, resource)
		close(gate)
	})
}

// put stores objects, one change each.
func (a *apiServer) put(objects ...object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, o := range objects {
		resource := resourceOf(o)
		if a.objects[resource] == nil {
			a.objects[resource] = map[string]object{}
		}
		kind := "ADDED"
		if _, had := a.objects[resource][nameOf(o)]; had {
			kind = "MODIFIED"
		}
		a.record(kind, resource, o)
		a.objects[resource][nameOf(o)] = a.events[len(a.events)-1].obj
	}
	a.changed.Broadcast()
}

func (a *apiServer) delete(objects ...object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, o := range objects {
		a.record("DELETED", resourceOf(o), o)
		delete(a.objects[resourceOf(o)], nameOf(o))
	}
	a.changed.Broadcast()
}

func (a *apiServer) record(kind, resource string, o object) {
	a.version++
	o = o.DeepCopyObject().(object)
	o.SetResourceVersion(strconv.Itoa(a.version))
	o.GetObjectKind().SetGroupVersionKind(gvkOf(o))
	a.events = append(a.events, event{a.version, resource, kind, o})
}

func nameOf(o object) string { return o.GetNamespace() + "/" + o.GetName() }

func resourceOf(o object) string {
	switch o.(type) {
	case *core.Service:
		return "services"
	case *discovery.EndpointSlice:
		return "endpointslices"
	case *networking.ServiceCIDR:
		return "servicecidrs"
	}
	return "nodes"
}

func gvkOf(o object) schema.GroupVersionKind {
	switch o.(type) {
	case *core.Service:
		return core.SchemeGroupVersion.WithKind("Service")
	case *discovery.EndpointSlice:
		return discovery.SchemeGroupVersion.WithKind("EndpointSlice")
	case *networking.ServiceCIDR:
		return networking.SchemeGroupVersion.WithKind("ServiceCIDR")
	}
	return core.SchemeGroupVersion.WithKind("Node")
}

// ServeHTTP implements http.Handler.
func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	resource := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	if r.Method == http.MethodPost {
		a.take(w, r)
		return
	}
	a.mu.Lock()
	gate, token, busy := a.gates[resource], a.token, a.busy
	if resource == "servicecidrs" && a.objects[resource] == nil { // as before 1.33
		a.mu.Unlock()
		http.NotFound(w, r)
		return
	}
	if busy != 0 {
		a.turned = append(a.turned, time.Now())
	}
	a.mu.Unlock()
	if busy != 0 {
		w.Header().Set("Retry-After", strconv.Itoa(busy))
		http.Error(w, "Too many requests, please try again later.", http.StatusTooManyRequests) // as its filters do
		return
	}
	if gate != nil {
		select {
		case <-gate:
		case <-r.Context().Done():
			return
		}
	}
	if token != "" && r.Header.Get("Authorization") != "Bearer "+token {
		refuse(w, http.StatusUnauthorized, meta.StatusReasonUnauthorized, "Unauthorized")
		return
	}
	match := matcher(r)
	w.Header().Set("Content-Type", "application/json")
	if r.FormValue("watch") == "" {
		a.list(w, resource, match)
		return
	}
	a.watch(w, r, resource, match)
}

// take keeps what is posted, and says it back.
func (a *apiServer) take(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	a.mu.Lock()
	a.written = append(a.written, r.URL.Path+" "+string(body))
	a.mu.Unlock()
	w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write(body)
}

func matcher(r *http.Request) func(object) bool {
	l, err := labels.Parse(r.FormValue("labelSelector"))
	if err != nil {
		panic(err)
	}
	f, err := fields.ParseSelector(r.FormValue("fieldSelector"))
	if err != nil {
		panic(err)
	}
	return func(o object) bool {
		return l.Matches(labels.Set(o.GetLabels())) && f.Matches(fields.Set{"metadata.name": o.GetName()})
	}
}

func refuse(w http.ResponseWriter, code int, reason meta.StatusReason, msg string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(status(code, reason, msg))
}

func status(code int, reason meta.StatusReason, msg string) *meta.Status {
	return &meta.Status{
		TypeMeta: meta.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: meta.StatusFailure,
		Code: int32(code), Reason: reason, Message: msg,
	}
}

func (a *apiServer) list(w http.ResponseWriter, resource string, match func(object) bool) {
	a.mu.Lock()
	a.lists++
	kind, group := "ServiceList", "v1"
	switch resource {
	case "endpointslices":
		kind, group = "EndpointSliceList", "discovery.k8s.io/v1"
	case "servicecidrs":
		kind, group = "ServiceCIDRList", "networking.k8s.io/v1"
	case "nodes":
		kind = "NodeList"
	}
	items := a.matching(resource, match)
	if a.nulls && len(items) == 0 {
		items = nil
	}
	version := strconv.Itoa(a.version)
	a.mu.Unlock()
	_ = json.NewEncoder(w).Encode(map[string]any{
		"kind": kind, "apiVersion": group, "metadata": map[string]any{"resourceVersion": version}, "items": items,
	})
}

// matching returns objects in order of their names. The caller has the lock.
func (a *apiServer) matching(resource string, match func(object) bool) []object {
	items := []object{}
	for _, name := range slices.Sorted(maps.Keys(a.objects[resource])) {
		if o := a.objects[resource][name]; match(o) {
			items = append(items, o)
		}
	}
	return items
}

func (a *apiServer) watch(w http.ResponseWriter, r *http.Request, resource string, match func(object) bool) {
	since, _ := strconv.Atoi(r.FormValue("resourceVersion"))
	stream := json.NewEncoder(w)
	send := func(kind string, obj any) bool {
		err := stream.Encode(map[string]any{"type": kind, "object": obj})
		w.(http.Flusher).Flush()
		return err == nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if r.FormValue("sendInitialEvents") == "true" {
		if !a.streams {
			refuse(w, http.StatusUnprocessableEntity, meta.StatusReasonInvalid, "sendInitialEvents is forbidden")
			return
		}
		for _, o := range a.matching(resource, match) {
			send("ADDED", o)
		}
		a.lists++
		since = a.version
		send("BOOKMARK", bookmark(resource, since))
	} else if since < a.oldest || since > a.version {
		send("ERROR", status(http.StatusGone, meta.StatusReasonExpired, fmt.Sprintf("too old resource version: %d (%d)", since, a.oldest)))
		return
	}
	w.(http.Flusher).Flush()
	a.follow(r, resource, match, since, send)
}

// follow sends events until the watch is cut or the client goes. The caller has the lock.
func (a *apiServer) follow(r *http.Request, resource string, match func(object) bool, since int, send func(string, any) bool) {
	defer wakeWhenGone(r, a.changed)()
	for epoch := a.epoch; a.epoch == epoch && r.Context().Err() == nil; a.changed.Wait() {
		if since < a.oldest {
			send("ERROR", status(http.StatusGone, meta.StatusReasonExpired, "too old"))
			return
		}
		for _, e := range a.events {
			if e.version > since && e.resource == resource && match(e.obj) {
				send(e.kind, e.obj)
			}
		}
		since = max(since, a.version)
	}
}

// wakeWhenGone wakes who waits on cond when the client of r is gone.
func wakeWhenGone(r *http.Request, cond *sync.Cond) (stop func()) {
	done := make(chan struct{})
	go func() {
		select {
		case <-r.Context().Done():
			cond.L.Lock()
			defer cond.L.Unlock()
			cond.Broadcast()
		case <-done:
		}
	}()
	return func() { close(done) }
}

func bookmark(resource string, version int) object {
	m := meta.ObjectMeta{ResourceVersion: strconv.Itoa(version), Annotations: map[string]string{meta.InitialEventsAnnotationKey: "true"}}
	var o object = &core.Node{ObjectMeta: m}
	switch resource {
	case "services":
		o = &core.Service{ObjectMeta: m}
	case "endpointslices":
		o = &discovery.EndpointSlice{ObjectMeta: m}
	case "servicecidrs":
		o = &networking.ServiceCIDR{ObjectMeta: m}
	}
	o.GetObjectKind().SetGroupVersionKind(gvkOf(o))
	return o
}

// answered returns how many lists were.
func (a *apiServer) answered() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.lists
}

// within is how long anything in tests may take that takes no time when nothing is wrong.
const within = 20 * time.Second

// authority makes a certificate for an address that vouches for itself.
func authority(t *testing.T, addr string) (cert tls.Certificate, pemText []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	fatal.If(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, IPAddresses: []net.IP{net.ParseIP(addr[:strings.Index(addr, ":")])},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	fatal.If(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key},
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
