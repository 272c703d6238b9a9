package configs

import (
	"slices"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/decode"
	"svcproxy.dev/svcproxy/source/file"
)

// OfSources are the settings that one source alone has. They are read at start only.
type OfSources struct {
	Kubernetes Kubernetes
}

// Kubernetes says where the API server is.
type Kubernetes struct {
	Kubeconfig, APIServer, ProxyName string
}

// sources are those that settings can ask for, each with the keys of the table of
// its name. One without keys has no table.
var sources = []section{
	{file.Name, nil},
	{"kubernetes", []field{
		decode.Key("kubeconfig", decode.Matching("an absolute path", orEmpty(isPath)).As(orNone("/.*")), func(s *Settings) *string { return &s.Kubernetes.Kubeconfig }),
		decode.Key("api_server", decode.Matching(`a URL, such as "https://10.0.0.1:6443"`, orEmpty(isURL)).As(orNone("https?://.+")), func(s *Settings) *string { return &s.Kubernetes.APIServer }),
		decode.Key("proxy_name", decode.Matching("letters, digits, -, _ and .", source.IsLabelValue).As(orNone(namePattern)), func(s *Settings) *string { return &s.Kubernetes.ProxyName }),
	}},
}

func sourceNames() (names []string) {
	for _, s := range sources {
		names = append(names, s.name)
	}
	return names
}

// remoteNames are those of the sources that have a server.
func remoteNames() []string {
	return slices.DeleteFunc(sourceNames(), func(name string) bool { return name == file.Name })
}

// sourceTables are the tables of sources.
func sourceTables() []section {
	return slices.DeleteFunc(slices.Clone(sources), func(s section) bool { return len(s.fields) == 0 })
}

// DifferentSources returns the names of the sources whose tables differ.
func DifferentSources(a, b Settings) (names []string) {
	for _, t := range sourceTables() {
		if slices.ContainsFunc(t.fields, func(f field) bool { return decode.Literal(f.Value(&a)) != decode.Literal(f.Value(&b)) }) {
			names = append(names, t.name)
		}
	}
	return names
}
