//go:build !nokubernetes

package sources

import (
	"slices"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/kubernetes"
)

func init() {
	Types = append(Types, Type{Name: kubernetes.Name, Precedence: 20, Open: openKubernetes, Remote: true, Eligibility: true})
}

var (
	_ HealthTeller = (*kubernetes.Source)(nil)
	_ Holder       = (*kubernetes.Source)(nil)
)

func openKubernetes(c Config) source.Source {
	k := c.Kubernetes
	return kubernetes.New(kubernetes.Options{
		Kubeconfig: k.Kubeconfig, APIServer: k.APIServer, ProxyName: k.ProxyName,
		NodeName: c.NodeName, UserAgent: "svcproxy/" + c.Version,
		StateDir: c.StateDir, Beside: c.Several, AllowEmpty: slices.Contains(c.Guard.AllowEmpty, kubernetes.Name), Log: c.Log, OnNode: c.Host.Joined, OnServiceCIDRs: c.Host.SetServiceCIDRs,
	})
}
