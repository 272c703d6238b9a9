package daemon

import (
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
	d.metrics.Watch(kubernetesName, d.cluster.Status)
}

// joined takes over what the cluster says of this host; nil: it has no node
// object of it. What it said before stays then: stale beats partial.
func (d *daemon) joined(n *source.ClusterNode) {
	d.mu.Lock()
	was := d.member
	if n != nil {
		d.member = n
	}
	d.mu.Unlock()
	d.health.SetEligible(n == nil && was == nil || n != nil && n.Eligible)
	d.setNode()
}

// objects returns those of an API that are refused for what they claim.
func objects(st source.Status, refusals []proxier.Refusal) []source.FileStatus {
	var out []source.FileStatus
	for _, r := range refusals {
		if r.Unit.Source != st.Source || st.Connection == nil {
			continue
		}
		o := source.FileStatus{Path: r.Unit.Name, State: source.Refused, Since: r.Since, Faults: r.Faults}
		if r.Stale {
			o.State, o.Services = source.Stale, 1
		}
		out = append(out, o)
	}
	return out
}
