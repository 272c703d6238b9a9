//go:build !nokubernetes

package kubernetes

import (
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/go-logr/logr"
	events "k8s.io/api/events/v1"
	"k8s.io/klog/v2"

	"svcproxy.dev/svcproxy/internal/wake"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/remote"
)

// Name is what the source is called, in settings and in units.
const Name = "kubernetes"

// Options say which cluster a Source reads, and for whom.
type Options struct {
	Kubeconfig string // path; empty: the service account of the pod we run in, then $KUBECONFIG
	APIServer  string // URL; empty: as those say
	ProxyName  string // value of the label service.kubernetes.io/service-proxy-name; empty: services without it
	NodeName   string // of the Node object of this host, if it has one
	UserAgent  string
	StateDir   string       // keeps what the cluster last said; empty: nothing does
	Beside     bool         // other sources are served too: they do not wait for an API server that cannot be reached
	AllowEmpty bool         // see SetAllowEmpty
	Log        *slog.Logger // nil: none

	// OnNode is told what the Node object says, for the first time before Synced,
	// from the goroutine of Run. Nil: this host is not, or no more, a node of the cluster.
	OnNode func(*source.ClusterNode)

	// OnServiceCIDRs is told the ranges that ClusterIPs come from, after Synced and from
	// the goroutine of Run, where the API server says so.
	OnServiceCIDRs func([]netip.Prefix)

	askHeld time.Duration // 0: heldPoll
}

// A kind is one of the kinds of objects that are read.
type kind int

const (
	services kind = iota
	endpointSlices
	nodes
	kinds int = iota

	// serviceCIDRs are not waited for: API servers before 1.33 have none, and not
	// everybody may read them.
	serviceCIDRs = kind(kinds)
)

func (k kind) String() string {
	return [...]string{"services", "endpointslices", "nodes", "servicecidrs"}[k]
}

// A step is something to do in the goroutine of Run.
type step func(*cluster)

// A Source is the API server of a cluster. It implements source.Source.
type Source struct {
	Options
	*remote.State
	events   chan *events.Event // to send
	commands chan step          // what others have the goroutine of Run do
	again    chan struct{}      // has an element when the API server is to be listed again
}

// maxEvents is how many events wait; more are dropped, the log has them all.
const maxEvents = 16

// silence has client-go log nothing of its own: what it cannot do reaches us as
// an error, and status says it once.
var silence = sync.OnceFunc(func() { klog.SetLogger(logr.Discard()) })

// New returns a Source that does nothing before Run.
func New(o Options) *Source {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.OnNode == nil {
		o.OnNode = func(*source.ClusterNode) {}
	}
	if o.OnServiceCIDRs == nil {
		o.OnServiceCIDRs = func([]netip.Prefix) {}
	}
	silence()
	s := &Source{
		Options: o, State: remote.NewState(Name, o.Log, kinds), events: make(chan *events.Event, maxEvents),
		commands: make(chan step), again: make(chan struct{}, 1),
	}
	s.SetAllowEmpty(o.AllowEmpty)
	return s
}

// SetAllowEmpty implements remote.Confirmer.
func (s *Source) SetAllowEmpty(allow bool) {
	s.State.SetAllowEmpty(allow)
	if allow && s.Held() > 0 {
		s.askAgain()
	}
}

// askAgain has the API server listed again now.
func (s *Source) askAgain() { wake.Once(s.again) }
