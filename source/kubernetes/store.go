//go:build !nokubernetes

package kubernetes

import (
	"context"
	"net/netip"

	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	networking "k8s.io/api/networking/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"svcproxy.dev/svcproxy/source"
)

// A store takes what a reflector hears of one kind of objects to the goroutine of
// Run. It stands where an informer has its cache, which would be a second copy.
// It implements cache.TransformingStore. T is what we keep of an object; the zero
// T stands for one that is gone or does not concern us.
type store[T any] struct {
	ctx   context.Context // of the reflector; its methods have none
	kind  kind
	parse func(obj any) T
	set   func(*cluster, source.Key, T)
	known func(*cluster, func(source.Key)) // visits all keys that were set
	of    func(source.Key, T) source.Key   // the service that an object belongs to
	steps chan<- step
}

// A parsed object has its name, its version, and what we keep of it. Of meta.ObjectMeta nothing
// else is filled in; by the name a reflector tells objects apart.
type parsed[T any] struct {
	meta.ObjectMeta
	kept T
}

func (s *store[T]) look(obj any) *parsed[T] {
	if p, ok := obj.(*parsed[T]); ok {
		return p
	}
	p := &parsed[T]{kept: s.parse(obj)}
	if o, ok := obj.(meta.Object); ok {
		p.Namespace, p.Name, p.ResourceVersion = o.GetNamespace(), o.GetName(), o.GetResourceVersion()
	}
	return p
}

func (p *parsed[T]) key() source.Key { return source.Key{Namespace: p.Namespace, Name: p.Name} }

// send hands on a step, or drops it when ctx has ended: what a finished session
// still heard counts no more. The end is no error: a reflector whose store fails
// while it takes over a first list leaves its watch, and a goroutine, open.
func (s *store[T]) send(st step) {
	unlessEnded := func(c *cluster) {
		if s.ctx.Err() == nil {
			st(c)
		}
	}
	select {
	case s.steps <- unlessEnded:
	case <-s.ctx.Done():
	}
}

// Add implements cache.ReflectorStore.
func (s *store[T]) Add(obj any) error {
	p := s.look(obj)
	s.send(func(c *cluster) {
		c.hear(s.kind, versionOf(p.ResourceVersion), func(c *cluster) { s.set(c, p.key(), p.kept) })
	})
	return nil
}

// Update implements cache.ReflectorStore.
func (s *store[T]) Update(obj any) error { return s.Add(obj) }

// Delete implements cache.ReflectorStore.
func (s *store[T]) Delete(obj any) error {
	p := s.look(obj)
	s.send(func(c *cluster) {
		c.hear(s.kind, versionOf(p.ResourceVersion), func(c *cluster) {
			var gone T
			s.set(c, p.key(), gone)
		})
	})
	return nil
}

// Replace implements cache.ReflectorStore: these are all objects there are.
func (s *store[T]) Replace(list []any, version string) error {
	all, services := make(map[source.Key]T, len(list)), make(map[source.Key]bool, len(list))
	for i, obj := range list {
		p := s.look(obj)
		all[p.key()] = p.kept
		services[s.of(p.key(), p.kept)] = true
		list[i] = nil // can go
	}
	use := func(c *cluster) {
		s.known(c, func(key source.Key) {
			if _, still := all[key]; !still {
				var gone T
				s.set(c, key, gone)
			}
		})
		for key, kept := range all {
			s.set(c, key, kept)
		}
		if int(s.kind) < kinds {
			c.heard[s.kind] = true
		} else {
			c.ranges.listed = true
		}
	}
	s.send(func(c *cluster) { c.list(listing{s.kind, services, versionOf(version), use}) })
	return nil
}

// Resync implements cache.ReflectorStore.
func (s *store[T]) Resync() error { return nil }

// Transformer implements cache.TransformingStore: while a reflector gathers a
// first list, it holds no more than we keep.
func (s *store[T]) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) { return s.look(obj), nil }
}

// objects returns parse for what a store gets; other objects are of no concern.
func objects[O, T any](parse func(O) T) func(obj any) T {
	return func(obj any) (none T) {
		if o, ok := obj.(O); ok {
			return parse(o)
		}
		return none
	}
}

func serviceStore(ctx context.Context, steps chan<- step) *store[*service] {
	words := newWords()
	return &store[*service]{
		ctx: ctx, kind: services, steps: steps,
		parse: objects(func(s *core.Service) *service { return parseService(s, words) }),
		set:   func(c *cluster, key source.Key, s *service) { c.entries.setService(key, s) },
		of:    func(key source.Key, _ *service) source.Key { return key },
		known: func(c *cluster, visit func(source.Key)) {
			for key, e := range c.entries.all {
				if e.svc != nil {
					visit(key)
				}
			}
		},
	}
}

func sliceStore(ctx context.Context, steps chan<- step) *store[*slice] {
	words := newWords()
	return &store[*slice]{
		ctx: ctx, kind: endpointSlices, steps: steps,
		parse: objects(func(s *discovery.EndpointSlice) *slice { return parseSlice(s, words) }),
		set:   func(c *cluster, key source.Key, s *slice) { c.entries.setSlice(key, s) },
		of: func(_ source.Key, s *slice) source.Key {
			if s == nil { // of no service
				return ownService
			}
			return s.service
		},
		known: func(c *cluster, visit func(source.Key)) {
			for key := range c.entries.owners {
				visit(key)
			}
		},
	}
}

// nodeStore is of the one Node object that has the name of this host, or of none.
func nodeStore(ctx context.Context, steps chan<- step, name string) *store[*source.ClusterNode] {
	return &store[*source.ClusterNode]{
		ctx: ctx, kind: nodes, steps: steps,
		parse: objects(parseNode),
		set:   func(c *cluster, _ source.Key, n *source.ClusterNode) { c.setNode(n) },
		of:    func(key source.Key, _ *source.ClusterNode) source.Key { return key },
		known: func(_ *cluster, visit func(source.Key)) { visit(source.Key{Name: name}) },
	}
}

// cidrStore is of the ranges that ClusterIPs come from.
func cidrStore(ctx context.Context, steps chan<- step) *store[[]netip.Prefix] {
	return &store[[]netip.Prefix]{
		ctx: ctx, kind: serviceCIDRs, steps: steps,
		parse: objects(func(s *networking.ServiceCIDR) []netip.Prefix { return readPrefixes(s.Spec.CIDRs) }),
		set:   func(c *cluster, key source.Key, list []netip.Prefix) { c.ranges.set(key.Name, list) },
		of:    func(key source.Key, _ []netip.Prefix) source.Key { return key },
		known: func(c *cluster, visit func(source.Key)) {
			for name := range c.ranges.all {
				visit(source.Key{Name: name})
			}
		},
	}
}
