//go:build netns

package kubernetes

import (
	"context"
	"os"
	"strings"

	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/yaml"

	apps "k8s.io/api/apps/v1"
	rbac "k8s.io/api/rbac/v1"

	"svcproxy.dev/svcproxy/test/lab"
)

func ptr[T any](v T) *T { return &v }

// service makes a service with port 80 to 8080 under a cluster IP.
func service(name, ip string, edit ...func(*core.Service)) *core.Service {
	s := &core.Service{
		ObjectMeta: meta.ObjectMeta{Name: name},
		Spec: core.ServiceSpec{
			ClusterIP: ip, ClusterIPs: []string{ip},
			Ports: []core.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}},
		},
	}
	for _, f := range edit {
		f(s)
	}
	return s
}

// slice makes a slice of a service whose endpoints are hosts of the lab.
func slice(name, of string, hosts ...*lab.Host) *discovery.EndpointSlice {
	s := &discovery.EndpointSlice{
		ObjectMeta:  meta.ObjectMeta{Name: name, Labels: map[string]string{discovery.LabelServiceName: of}},
		AddressType: discovery.AddressTypeIPv4, Endpoints: []discovery.Endpoint{},
		Ports: []discovery.EndpointPort{{Name: ptr(""), Port: ptr(int32(8080)), Protocol: ptr(core.ProtocolTCP)}},
	}
	for _, h := range hosts {
		node := "there"
		if strings.HasPrefix(h.Role, "local") {
			node = "node"
		}
		s.Endpoints = append(s.Endpoints, discovery.Endpoint{Addresses: []string{h.Addr().V4.String()}, NodeName: &node})
	}
	return s
}

// put makes objects, or changes those that there are.
func (c *cluster) put(objects ...any) {
	c.t.Helper()
	ctx := context.Background()
	for _, o := range objects {
		var err error
		switch o := o.(type) {
		case *core.Service:
			services := c.client.CoreV1().Services("default")
			if old, e := services.Get(ctx, o.Name, meta.GetOptions{}); e == nil {
				o.ResourceVersion = old.ResourceVersion
				_, err = services.Update(ctx, o, meta.UpdateOptions{})
			} else {
				_, err = services.Create(ctx, o, meta.CreateOptions{})
			}
		case *discovery.EndpointSlice:
			slices := c.client.DiscoveryV1().EndpointSlices("default")
			if _, e := slices.Get(ctx, o.Name, meta.GetOptions{}); e == nil {
				_, err = slices.Update(ctx, o, meta.UpdateOptions{})
			} else {
				_, err = slices.Create(ctx, o, meta.CreateOptions{})
			}
		case *core.Node:
			err = c.putNode(o)
		}
		if err != nil {
			c.t.Fatal(err)
		}
	}
}

func (c *cluster) putNode(n *core.Node) error {
	ctx, nodes := context.Background(), c.client.CoreV1().Nodes()
	made, err := nodes.Create(ctx, n, meta.CreateOptions{})
	if err != nil {
		return err
	}
	made.Status = n.Status
	_, err = nodes.UpdateStatus(ctx, made, meta.UpdateOptions{})
	return err
}

func (c *cluster) deleteService(name string) {
	c.t.Helper()
	if err := c.client.CoreV1().Services("default").Delete(context.Background(), name, meta.DeleteOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) deleteSlice(name string) {
	c.t.Helper()
	if err := c.client.DiscoveryV1().EndpointSlices("default").Delete(context.Background(), name, meta.DeleteOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// example makes the objects of a file of configs/kubernetes, which must have no
// field that the API does not know, and returns those of config maps.
func (c *cluster) example(name string) []core.ConfigMap {
	c.t.Helper()
	text, err := os.ReadFile("../../configs/kubernetes/" + name)
	if err != nil {
		c.t.Fatal(err)
	}
	var maps []core.ConfigMap
	for _, doc := range strings.Split(string(text), "\n---\n") {
		var kind meta.TypeMeta
		if err := yaml.Unmarshal([]byte(doc), &kind); err != nil {
			c.t.Fatal(err)
		}
		if err := c.create(kind.Kind, []byte(doc), &maps); err != nil {
			c.t.Fatalf("%s: %s: %v", name, kind.Kind, err)
		}
	}
	return maps
}

func (c *cluster) create(kind string, doc []byte, maps *[]core.ConfigMap) error {
	ctx, o := context.Background(), meta.CreateOptions{FieldValidation: meta.FieldValidationStrict}
	var err error
	switch kind {
	case "ServiceAccount":
		_, err = created(doc, func(v *core.ServiceAccount) (any, error) {
			return c.client.CoreV1().ServiceAccounts(v.Namespace).Create(ctx, v, o)
		})
	case "ClusterRole":
		_, err = created(doc, func(v *rbac.ClusterRole) (any, error) { return c.client.RbacV1().ClusterRoles().Create(ctx, v, o) })
	case "ClusterRoleBinding":
		_, err = created(doc, func(v *rbac.ClusterRoleBinding) (any, error) {
			return c.client.RbacV1().ClusterRoleBindings().Create(ctx, v, o)
		})
	case "DaemonSet":
		_, err = created(doc, func(v *apps.DaemonSet) (any, error) {
			return c.client.AppsV1().DaemonSets(v.Namespace).Create(ctx, v, o)
		})
	default:
		_, err = created(doc, func(v *core.ConfigMap) (any, error) {
			*maps = append(*maps, *v)
			return c.client.CoreV1().ConfigMaps(v.Namespace).Create(ctx, v, o)
		})
	}
	return err
}

func created[T any](doc []byte, create func(*T) (any, error)) (any, error) {
	v := new(T)
	if err := yaml.UnmarshalStrict(doc, v); err != nil {
		return nil, err
	}
	return create(v)
}
