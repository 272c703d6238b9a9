package peers

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"path"
	"strconv"
	"sync"
	"time"

	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	networking "k8s.io/api/networking/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
)

// firstVersion is the resource version of all that is there at first.
const firstVersion = 1000

// A server answers watches as an API server of Kubernetes 1.34 or later does: in protobuf,
// with what there is streamed first. It does not answer lists, which nobody asks for who
// gets that. All of it is encoded ahead, so that it takes next to no time to answer.
type server struct {
	mu      sync.Mutex
	kinds   map[string]*kind // by resource
	refused []string         // requests that were not answered
}

// A kind is the objects of one resource.
type kind struct {
	objects [][]byte      // frames that add them
	changes [][]byte      // frames that change them: the n-th leads to version firstVersion + n
	changed chan struct{} // closed with the next change
	example func(meta.ObjectMeta) runtime.Object
}

// An object is one of those that the server has.
type object interface {
	meta.Object
	runtime.Object
}

var encoder = protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)

// newServer has what all programs are given.
func newServer(all []service) (*server, error) {
	s := &server{kinds: map[string]*kind{
		"services":       {example: func(m meta.ObjectMeta) runtime.Object { return &core.Service{ObjectMeta: m} }},
		"endpointslices": {example: func(m meta.ObjectMeta) runtime.Object { return &discovery.EndpointSlice{ObjectMeta: m} }},
		"nodes":          {example: func(m meta.ObjectMeta) runtime.Object { return &core.Node{ObjectMeta: m} }},
		"servicecidrs":   {example: func(m meta.ObjectMeta) runtime.Object { return &networking.ServiceCIDR{ObjectMeta: m} }},
	}}
	for _, k := range s.kinds {
		k.changed = make(chan struct{})
	}
	err := s.add("nodes", node())
	for i := 0; err == nil && i < len(all); i++ {
		if err = s.add("services", all[i].object()); err == nil {
			err = s.add("endpointslices", all[i].slice())
		}
	}
	if err == nil {
		err = s.add("servicecidrs", cidr())
	}
	return s, err
}

func (s *server) add(resource string, o runtime.Object) error {
	text, err := frame(watch.Added, o)
	s.kinds[resource].objects = append(s.kinds[resource].objects, text)
	return err
}

// change tells of new endpoints of services, and returns when it began to. Watches get
// all of it at once.
func (s *server) change(changed ...*service) (begin time.Time, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.kinds["endpointslices"]
	for _, c := range changed {
		o := c.slice()
		o.Generation++
		o.ResourceVersion = strconv.Itoa(firstVersion + len(k.changes) + 1)
		added, err := frame(watch.Added, o)
		if err != nil {
			return begin, err
		}
		modified, err := frame(watch.Modified, o)
		if err != nil {
			return begin, err
		}
		k.objects[c.index] = added
		k.changes = append(k.changes, modified)
	}
	begin = time.Now()
	close(k.changed)
	k.changed = make(chan struct{})
	return begin, nil
}

// frame encodes an event of a watch: its length in 4 bytes, and a WatchEvent.
func frame(event watch.EventType, o runtime.Object) ([]byte, error) {
	kinds, _, err := scheme.Scheme.ObjectKinds(o)
	if err != nil {
		return nil, fmt.Errorf("encoding %T: %w", o, err)
	}
	o.GetObjectKind().SetGroupVersionKind(kinds[0])
	var text bytes.Buffer
	if err := encoder.Encode(o, &text); err != nil {
		return nil, fmt.Errorf("encoding %T: %w", o, err)
	}
	message, err := (&meta.WatchEvent{Type: string(event), Object: runtime.RawExtension{Raw: text.Bytes()}}).Marshal()
	if err != nil {
		return nil, fmt.Errorf("encoding an event of %T: %w", o, err)
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(message))), message...), nil
}

// ServeHTTP implements http.Handler.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	k := s.kinds[path.Base(r.URL.Path)]
	switch {
	case r.Method == http.MethodPost: // an event of kube-proxy's: it is said back
		w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
		w.WriteHeader(http.StatusCreated)
		_, _ = io.Copy(w, io.LimitReader(r.Body, 1<<20))
	case k != nil && r.FormValue("watch") != "":
		w.Header().Set("Content-Type", runtime.ContentTypeProtobuf+";stream=watch")
		s.watch(w, r, k)
	default:
		s.mu.Lock()
		s.refused = append(s.refused, r.Method+" "+r.URL.String())
		s.mu.Unlock()
		http.Error(w, "only watches are answered", http.StatusNotImplemented)
	}
}

// watch sends what there is, if the client asks for that, and then what changes.
func (s *server) watch(w http.ResponseWriter, r *http.Request, k *kind) {
	out := bufio.NewWriterSize(w, 1<<16)
	s.mu.Lock()
	sent := len(k.changes)
	first := append([][]byte(nil), k.objects...)
	s.mu.Unlock()
	if r.FormValue("sendInitialEvents") != "true" {
		version, _ := strconv.Atoi(r.FormValue("resourceVersion"))
		sent, first = min(max(0, version-firstVersion), sent), nil
	} else if end, err := frame(watch.Bookmark, k.bookmark(firstVersion+sent)); err == nil {
		first = append(first, end)
	}
	for {
		for _, text := range first {
			if _, err := out.Write(text); err != nil {
				return
			}
		}
		if out.Flush() != nil {
			return
		}
		w.(http.Flusher).Flush()
		if first = s.next(r, k, sent); first == nil {
			return
		}
		sent += len(first)
	}
}

// bookmark is what tells a client that it has all that there was.
func (k *kind) bookmark(version int) runtime.Object {
	return k.example(meta.ObjectMeta{
		ResourceVersion: strconv.Itoa(version), Annotations: map[string]string{meta.InitialEventsAnnotationKey: "true"},
	})
}

// next waits for changes after those that were sent; nil: the client is gone.
func (s *server) next(r *http.Request, k *kind, sent int) [][]byte {
	for {
		s.mu.Lock()
		changes, changed := k.changes[sent:len(k.changes):len(k.changes)], k.changed
		s.mu.Unlock()
		if len(changes) > 0 {
			return changes
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return nil
		}
	}
}
