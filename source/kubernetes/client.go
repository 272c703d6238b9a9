//go:build !nokubernetes

package kubernetes

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync/atomic"

	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	events "k8s.io/api/events/v1"
	networking "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// An identity is how we reach the API server and who we are there. Files that it
// is made of are read into it, so that a change of any of them is a change of version.
type identity struct {
	config  *rest.Config
	version [sha256.Size]byte
}

// identify reads what the options and this host say of the API server.
func (o *Options) identify() (*identity, error) {
	cfg, files, err := o.load()
	if err != nil {
		return nil, err
	}
	if o.APIServer != "" {
		cfg.Host = o.APIServer
	}
	if err := rest.LoadTLSFiles(cfg); err != nil {
		return nil, fmt.Errorf("reading certificates for the API server: %w", err)
	}
	cfg.CertFile, cfg.KeyFile, cfg.CAFile = "", "", ""
	cfg.UserAgent = cmp.Or(o.UserAgent, rest.DefaultKubernetesUserAgent())
	h := sha256.New()
	for _, b := range [][]byte{[]byte(cfg.Host), cfg.CertData, cfg.KeyData, cfg.CAData} {
		fmt.Fprintf(h, "%d %s", len(b), b)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		fmt.Fprintf(h, "%q %v %s", f, err == nil, text)
	}
	return &identity{cfg, [sha256.Size]byte(h.Sum(nil))}, nil
}

// load returns the first of these that there is: the kubeconfig that is set, the
// service account of the pod we run in, the files of $KUBECONFIG, an API server
// that asks nobody who he is. And the kubeconfig files it read.
func (o *Options) load() (*rest.Config, []string, error) {
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: o.Kubeconfig}
	if o.Kubeconfig == "" {
		cfg, err := rest.InClusterConfig()
		if !errors.Is(err, rest.ErrNotInCluster) {
			return cfg, nil, err
		}
		rules.Precedence = clientcmd.NewDefaultClientConfigLoadingRules().Precedence
		if os.Getenv(clientcmd.RecommendedConfigPathEnvVar) == "" { // else it would be a file in root's home
			if o.APIServer == "" {
				return nil, nil, errors.New("no API server is named: set kubeconfig or api_server under [kubernetes], or $KUBECONFIG")
			}
			return &rest.Config{}, nil, nil
		}
	}
	files := rules.GetLoadingPrecedence()
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, nil, fmt.Errorf("reading kubeconfig: %w", err)
	}
	return cfg, files, nil
}

// A client asks one API server.
type client struct {
	http                        *http.Client
	core, discovery, networking *rest.RESTClient
	events                      *rest.RESTClient
}

// newClient makes connections of its own, none that client-go keeps forever.
// utilnet has them notice within 45 s that nobody answers any more.
func newClient(cfg *rest.Config) (*client, error) {
	tls, err := rest.TLSConfigFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("reading certificates for the API server: %w", err)
	}
	if path := cfg.BearerTokenFile; path != "" {
		cfg = rest.CopyConfig(cfg)
		cfg.BearerToken, cfg.BearerTokenFile = "", ""
		cfg.Wrap(func(base http.RoundTripper) http.RoundTripper { return &tokenFile{path: path, base: base} })
	}
	transport := utilnet.SetTransportDefaults(&http.Transport{TLSClientConfig: tls, Proxy: cfg.Proxy, DialContext: cfg.Dial})
	wrapped, err := rest.HTTPWrappersForConfig(cfg, transport)
	if err != nil {
		return nil, fmt.Errorf("preparing to authenticate at the API server: %w", err)
	}
	c := &client{http: &http.Client{Transport: wrapped}}
	codecs, err := newCodecs()
	if err != nil {
		return nil, err
	}
	if c.core, err = restClient(cfg, codecs, c.http, core.SchemeGroupVersion, "/api"); err != nil {
		return nil, err
	}
	if c.discovery, err = restClient(cfg, codecs, c.http, discovery.SchemeGroupVersion, "/apis"); err != nil {
		return nil, err
	}
	if c.networking, err = restClient(cfg, codecs, c.http, networking.SchemeGroupVersion, "/apis"); err != nil {
		return nil, err
	}
	c.events, err = restClient(cfg, codecs, c.http, events.SchemeGroupVersion, "/apis")
	return c, err
}

// newCodecs knows the four groups that we read or write. The clientset of client-go knows
// all of them, which takes 20 MB of a program.
func newCodecs() (serializer.CodecFactory, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(core.AddToScheme(scheme), discovery.AddToScheme(scheme), networking.AddToScheme(scheme), events.AddToScheme(scheme)); err != nil {
		return serializer.CodecFactory{}, fmt.Errorf("registering the types of the API: %w", err)
	}
	return serializer.NewCodecFactory(scheme), nil
}

func restClient(cfg *rest.Config, codecs serializer.CodecFactory, http *http.Client, gv schema.GroupVersion, path string) (*rest.RESTClient, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.GroupVersion, cfg.APIPath = &gv, path
	cfg.NegotiatedSerializer = codecs.WithoutConversion()
	cfg.ContentType = runtime.ContentTypeProtobuf
	cfg.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	c, err := rest.RESTClientForConfigAndClient(cfg, http)
	if err != nil {
		return nil, fmt.Errorf("making a client for %s: %w", gv, err)
	}
	return c, nil
}

// A tokenFile sends the token in a file with each request, and reads the file for each: there are few. client-go
// would go on for 50 s with a token that is not accepted any more.
type tokenFile struct {
	path string
	base http.RoundTripper
	last atomic.Value // a string, the token that was read last
}

// RoundTrip implements http.RoundTripper. While the file cannot be read, or is being written, it sends
// the token of before.
func (f *tokenFile) RoundTrip(r *http.Request) (*http.Response, error) {
	text, err := os.ReadFile(f.path)
	if text = bytes.TrimSpace(text); len(text) > 0 {
		f.last.Store(string(text))
	}
	token, ok := f.last.Load().(string)
	switch {
	case !ok && err != nil:
		return nil, fmt.Errorf("reading the token for the API server: %w", err)
	case !ok:
		return nil, fmt.Errorf("reading the token for the API server from %s: the file is empty", f.path)
	}
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+token)
	return f.base.RoundTrip(r)
}
