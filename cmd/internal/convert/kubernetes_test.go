//go:build !nokubernetes

package convert_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
	"svcproxy.dev/svcproxy/source"
)

const withKubernetes = true

func FuzzKubernetes(f *testing.F) { fuzz(f, "kubernetes") }

func FuzzCilium(f *testing.F) { fuzz(f, "cilium") }

// A short text that stands for a long one is refused, not written out.
func TestAliases(t *testing.T) {
	text := "a: &a [" + strings.Repeat("x, ", 100) + "]\n"
	for _, c := range "bcdefgh" {
		text += string(c) + ": &" + string(c) + " [" + strings.Repeat("*"+string(c-1)+", ", 20) + "]\n"
	}
	_, err := format(t, "kubernetes").Read(reader.Input{Name: "in", Data: []byte(text)})
	if want := "in:1: it is no YAML: document contains excessive aliasing"; err == nil || err.Error() != want {
		t.Errorf("error %v; want %s", err, want)
	}
}

// A service of many ports may not be one for each with all endpoints, without end.
func TestKubernetesGrowth(t *testing.T) {
	tooMuch(t, "kubernetes", uneven(10), uneven(1000))
}

// uneven returns a service of n ports and of two endpoints for each, of which the first has one port only.
func uneven(n int) string {
	const head = "---\nkind: EndpointSlice\nmetadata: {name: a-%d, labels: {kubernetes.io/service-name: a}}\naddressType: IPv4\n"
	var endpoints strings.Builder
	for i := range 2 * n {
		fmt.Fprintf(&endpoints, "- addresses: [10.1.%d.%d]\n", i/250, i%250+1)
	}
	ports := lines(n, "  - {name: p%[1]d, port: %[1]d}")
	return "kind: Service\nmetadata: {name: a}\nspec:\n  clusterIP: 10.96.0.1\n  ports:\n" + ports +
		fmt.Sprintf(head, 1) + "ports: [{name: p1, port: 1}]\nendpoints: [{addresses: [10.0.0.1]}]\n" +
		fmt.Sprintf(head, 2) + "ports:\n" + ports + "endpoints:\n" + endpoints.String()
}

// Where a load balancer kept sources out by an annotation, the service counts as open.
func TestAnnotatedRangesOpen(t *testing.T) {
	const of, balanced, ranges = "service.beta.kubernetes.io/", "ingress: [{ip: 192.0.2.9}]", "loadBalancerSourceRanges: [10.0.0.0/8]"
	for want, all := range map[string][][]string{
		"[default/web]": {
			{of + "load-balancer-source-ranges: 10.0.0.0/8", balanced},
			{of + "load-balancer-source-ranges: \"::/0\"", balanced},
			{of + "load-balancer-source-ranges: 0.0.0.0/1", balanced},
			{of + "azure-allowed-ip-ranges: 10.0.0.0/8", balanced},
			{of + "azure-deny-all-except-load-balancer-source-ranges: \"true\"", balanced, ranges},
			{of + "do-loadbalancer-allow-rules: cidr:10.0.0.0/8", balanced},
			{of + "do-loadbalancer-deny-rules: ip:198.51.100.7", balanced},
			{of + "linode-loadbalancer-firewall-acl: x", balanced},
			{of + "linode-loadbalancer-firewall-id: \"7\"", balanced, ranges},
			{"service.cilium.io/src-ranges-policy: deny", "loadBalancerSourceRanges: [x]", balanced},
		},
		"[]": {
			{of + "load-balancer-source-ranges: 10.0.0.0/8"},
			{of + "load-balancer-source-ranges: 10.0.0.0/8", balanced, ranges},
			{of + "load-balancer-source-ranges: 0.0.0.0/0", balanced},
			{of + "load-balancer-source-ranges: \"128.0.0.0/1, 0.0.0.0/1\"", balanced},
			{of + "azure-deny-all-except-load-balancer-source-ranges: \"false\"", balanced, ranges},
			{of + "linode-loadbalancer-firewall-id: \"7\""},
		},
	} {
		for _, written := range all {
			text := kubeOf(false)(written)
			if d, err := document(format(t, "kubernetes"), reader.Input{Name: "in", Data: []byte(text)}); err != nil || fmt.Sprint(d.Opened) != want {
				t.Errorf("error %v, open: %v; want %s of\n%s", err, d.Opened, want, text)
			}
		}
	}
}

func init() {
	inputs["kubernetes"], inputs["cilium"] = kubeOf(false), kubeOf(true)
	generators["kubernetes"] = func(c *config) {
		for i := range 2 + c.IntN(6) {
			if c.often(3) {
				c.object("ConfigMap", fmt.Sprintf("metadata: {name: other%d}", i))
				c.states(nil, "other", nil)
			}
			w := c.kubeService(i, "Service")
			c.kubeSlice(w, pick(c, "EndpointSlice", "EndpointSlice", "Endpoints"))
		}
	}
	generators["cilium"] = func(c *config) {
		var all []kubeWeb
		c.add("services:")
		for i := range 2 + c.IntN(6) {
			all = append(all, c.kubeService(i, ""))
		}
		c.add("endpoints:")
		for _, w := range all {
			c.kubeSlice(w, "")
		}
	}
}

// A kubeWeb is a Service object that a config has.
type kubeWeb struct {
	*statement
	name, addr string
	i          int
}

// object adds an object, of no kind as an item of a list, and leaves c at the line where it begins.
func (c *config) object(kind string, fields ...string) {
	if kind != "" {
		c.add("---\nkind: %s", kind)
	} else {
		c.add("- %s", fields[0])
		fields = fields[1:]
	}
	for _, f := range fields {
		if kind == "" {
			f = "  " + f
		}
		c.text.WriteString(f + "\n")
	}
	c.after = len(fields)
}

func (c *config) kubeService(i int, kind string) kubeWeb {
	addr := fmt.Sprintf("10.96.0.%d", i+1)
	w := kubeWeb{name: fmt.Sprintf("web%d", i), addr: addr, i: i}
	cluster := pick(c, addr, addr, addr, "None", `""`)
	ports, affinity, ranges := "ports: [{port: 80}]", pick(c, "", "", ", sessionAffinity: ClientIP"), pick(c, "", "", ", loadBalancerSourceRanges: [10.0.0.0/8]")
	annotations := pick(c, "", "", ", annotations: {service.cilium.io/lb-algorithm: maglev}")
	c.object(kind, fmt.Sprintf("metadata: {name: %s%s}", w.name, annotations), fmt.Sprintf("spec: {clusterIP: %s, %s%s%s}", cluster, ports, affinity, ranges),
		fmt.Sprintf("status: {loadBalancer: {ingress: [{ip: 203.0.113.%d}]}}", i+1))
	found := func(ask func(*source.Service) bool) func([]*source.Service) bool {
		return func(all []*source.Service) bool {
			j := slices.IndexFunc(all, func(s *source.Service) bool { return s.Name == w.name })
			return j >= 0 && ask(all[j])
		}
	}
	w.statement = c.states(nil, w.name, found(exists))
	if affinity != "" {
		c.states(w.statement, "affinity", found(hasAffinity(3*time.Hour)))
	}
	if ranges != "" {
		c.states(w.statement, "ranges", found(onlyBalanced("10.0.0.0/8")))
	}
	if annotations != "" {
		c.states(w.statement, "lb-algorithm", nil)
	}
	return w
}

func (c *config) kubeSlice(w kubeWeb, kind string) {
	weight, label := 1, pick(c, w.name, w.name, w.name, "gone", "")
	annotations := ""
	if kind != "Endpoints" && c.often(5) {
		weight = c.IntN(9)
		annotations = fmt.Sprintf(", annotations: {service.cilium.io/weight: %q}", fmt.Sprint(weight))
	}
	labels := fmt.Sprintf(", labels: {kubernetes.io/service-name: %s}", label)
	if label == "" {
		labels = ""
	}
	host := fmt.Sprintf("192.168.10.%d", w.i+1)
	if kind == "Endpoints" {
		c.object(kind, fmt.Sprintf("metadata: {name: %s}", cmp.Or(label, "lost")), fmt.Sprintf("subsets: [{addresses: [{ip: %s}], ports: [{port: 80}]}]", host))
	} else {
		c.object(kind, fmt.Sprintf("metadata: {name: slice%d%s%s}", w.i, labels, annotations), "addressType: IPv4", "ports: [{port: 8080}]",
			fmt.Sprintf("endpoints: [{addresses: [%s]}]", host))
	}
	of := w.statement
	if label != w.name {
		of = nil
	}
	c.states(of, "Endpoint", func(all []*source.Service) bool {
		return slices.ContainsFunc(all, func(s *source.Service) bool { return s.Name == w.name && hasServer(host, weight)(s) })
	})
}

func onlyBalanced(text string) func(*source.Service) bool {
	return func(s *source.Service) bool {
		return fmt.Sprint(s.LoadBalancerSourceRanges) == "["+text+"]"
	}
}
