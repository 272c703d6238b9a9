package healthz

import (
	"encoding/json"
	"net/http"
	"strconv"
	"sync"
	"time"

	"svcproxy.dev/svcproxy/internal/times"
	"svcproxy.dev/svcproxy/proxier/loop"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// timeout is how long a change may wait for the kernel, and the loop may be
// stuck, before the node counts as unhealthy. It is kube-proxy's: twice its syncPeriod
// of 30 s, which is our resync_interval.
const timeout = time.Minute

// A Loop is what Health needs of loop.Loop.
type Loop interface {
	Ready() <-chan struct{}
	Alive() time.Time
}

// Health knows whether this node takes up changes in time.
type Health struct {
	mu       sync.Mutex
	loop     Loop                        // nil until Watch
	pending  map[policy.Family]time.Time // since when a change waits for a sync that succeeds
	updated  map[policy.Family]time.Time // the last sync that succeeded
	answered func(path string, code int) // counts answers; never nil
	leaves   bool                        // the cluster says that this node goes
	drained  func() *policy.Drain        // never nil
}

// NewHealth returns the health of a node that has not synced yet. It counts as
// healthy until a sync has failed for too long.
func NewHealth() *Health {
	return &Health{
		pending:  map[policy.Family]time.Time{},
		updated:  map[policy.Family]time.Time{},
		answered: func(string, int) {},
		drained:  func() *policy.Drain { return nil },
	}
}

// Watch makes a stuck loop unhealthy, and a loop that has synced ready.
func (h *Health) Watch(l Loop) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.loop = l
}

// Synced takes the result of one sync.
func (h *Health) Synced(r loop.SyncResult) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r.Err == nil {
		delete(h.pending, r.Family)
		h.updated[r.Family] = r.Start.Add(r.Duration)
		return
	}
	if _, waiting := h.pending[r.Family]; waiting {
		return
	}
	since := r.Queued
	if since.IsZero() { // a resync: the kernel is wrong since we first saw it
		since = r.Start
	}
	h.pending[r.Family] = since
}

// Dropped forgets a family that is not programmed any more: nobody syncs what
// waits there.
func (h *Health) Dropped(fam policy.Family) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.pending, fam)
	delete(h.updated, fam)
}

// Healthy reports whether no change has been waiting for too long.
func (h *Health) Healthy() bool {
	r, _ := h.report(time.Now())
	return r.Healthy
}

// report returns all of the answer but the part of the node, and whether the loop has shown no sign of life for too long.
func (h *Health) report(now time.Time) (r healthReport, stuck bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r = healthReport{CurrentTime: now.UTC(), Healthy: true, Status: map[string]familyReport{}}
	for fam, t := range h.updated {
		r.Status[fam.Title()] = familyReport{LastUpdated: t.UTC(), Healthy: true}
		r.LastUpdated = times.Later(r.LastUpdated, t.UTC())
	}
	for fam, since := range h.pending {
		_, had := h.updated[fam]
		leftOut := !had && len(h.updated) > 0 // it never worked: the others count
		if !leftOut && now.Sub(since) >= timeout {
			r.Healthy = false
			r.Status[fam.Title()] = familyReport{LastUpdated: h.updated[fam].UTC()}
		}
	}
	if h.loop != nil {
		alive := h.loop.Alive()
		stuck = !alive.IsZero() && now.Sub(alive) >= timeout
	}
	r.Healthy = r.Healthy && !stuck
	return r, stuck
}

// Ready reports whether the first complete sync is done.
func (h *Health) Ready() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.loop == nil {
		return false
	}
	select {
	case <-h.loop.Ready():
		return true
	default:
		return false
	}
}

// SetEligible says whether load balancers may send to this node.
func (h *Health) SetEligible(ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.leaves = !ok
}

// OnDrain has load balancers told not to send to this node while drained returns a drain, by
// /healthz and the health check node ports. It is called from any goroutine.
func (h *Health) OnDrain(drained func() *policy.Drain) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.drained = drained
}

// node returns whether load balancers may send to this node, and its drain; nil: there is none.
func (h *Health) node() (eligible bool, drain *drainReport) {
	h.mu.Lock()
	eligible, drained := !h.leaves, h.drained
	h.mu.Unlock()
	if why := drained(); why != nil {
		drain = &drainReport{why.Reason, why.At.UTC()}
	}
	return eligible, drain
}

// A drainReport says why this host is drained. By whom is not for the network.
type drainReport struct {
	Reason string    `json:"reason,omitempty"`
	Since  time.Time `json:"since"`
}

// A healthReport is the body of /healthz and /livez, that of kube-proxy. nodeEligible is
// in /healthz only; it is true on every host that no Kubernetes node object says
// otherwise of, and /healthz fails where it is not, or where the host is drained.
type healthReport struct {
	LastUpdated  time.Time               `json:"lastUpdated"`
	CurrentTime  time.Time               `json:"currentTime"`
	NodeEligible *bool                   `json:"nodeEligible,omitempty"`
	Drained      *drainReport            `json:"drained,omitempty"` // in /healthz only
	Healthy      bool                    `json:"healthy"`
	Status       map[string]familyReport `json:"status,omitempty"`
}

// A familyReport is one family's part: when the kernel was last brought up to date.
type familyReport struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

// excludeSync in the query of /healthz or /livez asks about svcproxy itself only, as
// who restarts it wants to know: a restart does not help a sync that the kernel refuses.
const excludeSync = "sync" // ?exclude=sync, after the words of the API server's /livez

// serve answers /healthz and /livez.
func (h *Health) serve(path string, asNode bool) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		now := time.Now()
		r, stuck := h.report(now)
		if req.URL.Query().Get("exclude") == excludeSync {
			r.Healthy = !stuck
		}
		ok := r.Healthy
		if asNode {
			eligible, drain := h.node()
			r.NodeEligible, r.Drained = &eligible, drain
			ok = ok && eligible && drain == nil
		}
		code := http.StatusServiceUnavailable
		if ok { // kube-proxy too calls a healthy node up to date as of now
			code, r.LastUpdated = http.StatusOK, r.CurrentTime
		}
		h.answered(path, code)
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.WriteHeader(code)
		body, _ := json.Marshal(r) // has nothing that cannot be written
		_, _ = w.Write(body)       // the client may be gone; there is nobody else to tell
	}
}

// ready answers /readyz.
func (h *Health) ready(w http.ResponseWriter, _ *http.Request) {
	if !h.Ready() {
		http.Error(w, "not ready: waiting for the first complete sync", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte("ok\n"))
}

// Handlers answers for the node, by listen address: how it does on address, and
// its metrics on metricsAddress, or on address too where that is empty.
func Handlers(address, metricsAddress string, h *Health, m *Metrics) map[string]http.Handler {
	h.answered = func(path string, code int) { m.answers[path].WithLabelValues(strconv.Itoa(code)).Inc() }
	node := http.NewServeMux()
	node.Handle("GET /healthz", h.serve("healthz", true))
	node.Handle("GET /livez", h.serve("livez", false))
	node.HandleFunc("GET /readyz", h.ready)
	metrics, all := node, map[string]http.Handler{address: node}
	if metricsAddress != "" && metricsAddress != address {
		metrics = http.NewServeMux()
		all[metricsAddress] = metrics
	}
	metrics.Handle("GET /metrics", m.Handler())
	return all
}
