package daemon

import (
	"net/netip"
	"slices"

	"svcproxy/proxier"
	"svcproxy/source"
	"svcproxy/source/file"
)

// sources returns those that settings ask for.
func (d *daemon) sources() []source.Source {
	var list []source.Source
	if slices.Contains(d.fixed.Sources, file.Name) {
		list = append(list, d.files)
	}
	if d.cluster != nil {
		list = append(list, d.cluster)
	}
	return list
}

// builtWith tells whether this build has a source.
func builtWith(name string) bool { return name == kubernetesName && newCluster != nil }

// kubernetesName is what the source is called in settings.
const kubernetesName = "kubernetes"

// wireCluster makes the source that is a cluster, if settings ask for it.
func (d *daemon) wireCluster() {
	if !slices.Contains(d.fixed.Sources, kubernetesName) || newCluster == nil {
		return
	}
	d.cluster = newCluster(d)
	d.health.SetEligible(d.besideCluster()) // until the cluster says more
	d.metrics.Watch(kubernetesName, d.cluster.Status)
}

// besideCluster tells whether this host serves more than a cluster.
func (d *daemon) besideCluster() bool { return slices.Contains(d.fixed.Sources, file.Name) }

// joined takes over what the cluster says of this host; nil: it has no node
// object of it. What it said before stays then: stale beats partial. Load
// balancers do not send to what is no node, unless it serves files too: then it
// may be a host beside the cluster, and never was one.
func (d *daemon) joined(n *source.ClusterNode) {
	d.mu.Lock()
	was := d.member
	if n != nil {
		d.member = n
	}
	d.mu.Unlock()
	d.health.SetEligible(n == nil && was == nil && d.besideCluster() || n != nil && n.Eligible)
	d.setNode()
}

// setServiceCIDRs takes over the ranges that a cluster's ClusterIPs come from.
func (d *daemon) setServiceCIDRs(list []netip.Prefix) {
	d.mu.Lock()
	d.serviceCIDRs = list
	d.mu.Unlock()
	d.setNode()
}

// withRefusals adds to the objects of an API what of them others have.
func withRefusals(st source.Status, refusals []proxier.Refusal) []source.FileStatus {
	for _, r := range refusals {
		if r.Unit.Source != st.Source || st.Connection == nil {
			continue
		}
		i := slices.IndexFunc(st.Objects, func(o source.FileStatus) bool { return o.Path == r.Unit.Name })
		if i < 0 {
			st.Objects = append(st.Objects, source.FileStatus{Path: r.Unit.Name, State: source.Accepted, Since: r.Since, Services: 1})
			i = len(st.Objects) - 1
		}
		o := &st.Objects[i]
		o.Faults = slices.Concat(o.Faults, r.Faults)
		if !r.Partial {
			o.State, o.Since, o.Services = source.Refused, r.Since, 0
		}
	}
	return st.Objects
}
