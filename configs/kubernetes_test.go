package configs_test

import (
	"path/filepath"
	"slices"
	"testing"

	"svcproxy.dev/svcproxy/configs"
)

func TestKubernetesExample(t *testing.T) {
	s, faults, err := configs.Load(filepath.Join("kubernetes", "svcproxy.toml"))
	if err != nil || len(faults) > 0 {
		t.Fatal(err, faults)
	}
	if !slices.Equal(s.Sources, []string{"file", "kubernetes"}) || s.Kubernetes.Kubeconfig == "" {
		t.Errorf("sources %v, %+v", s.Sources, s.Kubernetes)
	}
}
