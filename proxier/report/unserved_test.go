package report

import (
	"errors"
	"testing"

	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// Of many, a frontend is told what is about its service.
func TestUnservedReason(t *testing.T) {
	u := &proxier.PartialError{Err: errors.Join(errors.New("service default/a: no such scheduler"), errors.New("service default/web: taken"))}
	web := &policy.Frontend{ServicePort: policy.ServicePortName{Key: source.Key{Namespace: "default", Name: "web"}}}
	if got := whyUnserved(web, u); got != "service default/web: taken" {
		t.Error(got)
	}
	web.ServicePort.Name = "other"
	if got := whyUnserved(web, u); got != "service default/a: no such scheduler" {
		t.Error(got)
	}
}
