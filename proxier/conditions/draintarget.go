package conditions

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"unicode/utf8"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// A DrainTarget is what is drained: an address as an endpoint of a service, or of all, or
// this host. Its text is "192.168.10.12", "default/web/192.168.10.12" or "node".
type DrainTarget struct {
	Addr    netip.Addr
	Service source.Key // zero: all services
	Node    bool       // this host, and nothing else
}

// node is the text of this host as a DrainTarget.
const node = "node"

// DefaultNamespace is the namespace of a service that is named without one.
const DefaultNamespace = "default"

var errTarget = errors.New("want an address without a port, or NAME/ADDRESS, or NAMESPACE/NAME/ADDRESS")

// ParseDrainTarget reads the text of a target. A service without a namespace is in "default".
func ParseDrainTarget(text string) (DrainTarget, error) {
	if text == node {
		return DrainTarget{Node: true}, nil
	}
	parts := strings.Split(text, "/")
	a, err := netip.ParseAddr(parts[len(parts)-1])
	if err != nil || len(parts) > 3 || a.Zone() != "" || a.IsUnspecified() {
		return DrainTarget{}, fmt.Errorf("unknown target %.100q; %w", text, errTarget)
	}
	t := DrainTarget{Addr: a.Unmap()}
	if parts = parts[:len(parts)-1]; len(parts) == 1 {
		parts = []string{DefaultNamespace, parts[0]}
	}
	if len(parts) == 0 {
		return t, nil
	}
	t.Service = source.Key{Namespace: parts[0], Name: parts[1]}
	if !source.IsLabel(t.Service.Namespace) || !source.IsLabel(t.Service.Name) {
		return DrainTarget{}, fmt.Errorf("unknown target %.100q; %w", text, errTarget)
	}
	return t, nil
}

// String returns the text of the target.
func (t DrainTarget) String() string {
	switch {
	case t.Node:
		return node
	case t.Service == source.Key{}:
		return t.Addr.String()
	}
	return t.Service.String() + "/" + t.Addr.String()
}

// Covers reports whether an address as an endpoint of a service is drained with t. All is with this host.
func (t DrainTarget) Covers(key source.Key, a netip.Addr) bool {
	return t.Node || t.Addr == a && (t.Service == source.Key{} || t.Service == key)
}

// MarshalText implements encoding.TextMarshaler.
func (t DrainTarget) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (t *DrainTarget) UnmarshalText(text []byte) (err error) {
	*t, err = ParseDrainTarget(string(text))
	return err
}

// compare has this host first: it has no address.
func (t DrainTarget) compare(o DrainTarget) int {
	return cmp.Or(t.Addr.Compare(o.Addr), t.Service.Compare(o.Service))
}

// unmap has one form for each address.
func (t DrainTarget) unmap() DrainTarget {
	t.Addr = t.Addr.Unmap()
	return t
}

// MaxReason and maxBy are how long the texts of a drain may be, in bytes, when they are escaped.
const (
	MaxReason = 200
	maxBy     = 64
)

// bounded returns a drain whose texts can be shown.
func bounded(why policy.Drain) policy.Drain {
	why.Reason, why.By = escaped(why.Reason, MaxReason), escaped(why.By, maxBy)
	return why
}

// escaped returns a text without what could start a new line or steer a terminal, cut to so
// many bytes. An escaped text it leaves as it is.
func escaped(text string, most int) string {
	out := source.Printable(text[:min(len(text), most+1)])
	if len(out) <= most && len(text) <= most {
		return out
	}
	out = out[:most-len(more)]
	for !utf8.ValidString(out) {
		out = out[:len(out)-1]
	}
	return out + more
}

const more = "..."
