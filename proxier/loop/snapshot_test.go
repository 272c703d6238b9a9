package loop

import (
	"slices"
	"testing"
	"testing/synctest"

	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/claims"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/policy/policytest"
)

// What a Loop says its families have resolved is what its services resolve to, and the
// revision changes when they do.
func TestSnapshotIsWhatServicesResolveTo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := start(t, &kernel{}, func(c *Config) {
			c.Backends = map[policy.Family]proxier.Backend{policy.IPv4: &kernel{}, policy.IPv6: &kernel{}}
		})
		l.Apply(policytest.Set(policytest.File("a", "x 10.96.0.1:80", "y 10.96.0.2:80")))
		l.Synced("file")
		synctest.Wait()
		s, before := l.Snapshot().Snapshot, l.Revision()
		checkSnapshot(t, s, "a: default/x", "a: default/y")
		l.Apply(policytest.Set(policytest.File("b", "z 10.96.0.3:80"), policytest.File("c", "x 10.96.0.9:80")))
		synctest.Wait()
		if l.Revision() == before {
			t.Error("the revision of other services is the same")
		}
		checkSnapshot(t, l.Snapshot().Snapshot, "a: default/x", "a: default/y", "b: default/z")
		checkSnapshot(t, s, "a: default/x", "a: default/y")
		if refused := l.Snapshot().Refused; len(refused) != 1 || refused[0].Unit.Name != "c" || len(refused[0].Wanted) != 1 {
			t.Errorf("refused %+v, want c, which wants one service", refused)
		}
	})
}

// checkSnapshot checks the services of s, "UNIT: NAME", and that they are resolved for both families.
func checkSnapshot(t *testing.T, s claims.Snapshot, want ...string) {
	t.Helper()
	var got []string
	for _, svc := range s.Services {
		got = append(got, svc.Unit.Name+": "+svc.Key.String())
	}
	if slices.Sort(got); !slices.Equal(got, want) || !slices.Equal(s.Families, []policy.Family{policy.IPv4, policy.IPv6}) {
		t.Errorf("%q of %v, want %q of both families", got, s.Families, want)
	}
	if got, want := frontendKeys(s), frontendKeys(s.Resolve()); len(got) != len(s.Services) || !slices.Equal(got, want) {
		t.Errorf("the families have %v, their services resolve to %v", got, want)
	}
}

func frontendKeys(s claims.Snapshot) (list []policy.FrontendKey) {
	for _, r := range s.Resolved {
		for _, f := range r.Frontends {
			list = append(list, f.Key)
		}
	}
	slices.SortFunc(list, policy.FrontendKey.Compare)
	return list
}
