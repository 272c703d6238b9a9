//go:build nokubernetes

package kubernetes

import (
	"errors"

	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
)

var errNoKubernetes = errors.New("this svcproxy was built without Kubernetes (-tags nokubernetes), and cannot read its objects; use one that was not")

func Read(reader.Input) *reader.Result { return reader.End(errNoKubernetes) }

func ReadCilium(reader.Input) *reader.Result { return reader.End(errNoKubernetes) }
