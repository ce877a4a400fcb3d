package config_test

import _ "github.com/google/jsonschema-go/jsonschema"
