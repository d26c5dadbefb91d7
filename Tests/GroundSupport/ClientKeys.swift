/// Private keys of clients, made for tests and used nowhere else: the members of a JWK, or PEM.
package enum ClientKeys {
    /// The key of RFC 7515, appendix A.3.
    package static let p256 =
        #""kty":"EC","crv":"P-256","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","#
        + #""y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0","d":"jpsQnnGQmL-YBIffH1136cspYG6-0iY7X1fCE9-E9LI""#
    /// Its public part.
    package static let publicP256 =
        #""kty":"EC","crv":"P-256","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","#
        + #""y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0""#
    /// 2048 bits.
    package static let rsa =
        #""kty":"RSA","n":"0mczIikXS7_7s8DwiEv6qTDfamvC6AyZch0LPlro2PyeTRvQfP2Dcbxo-IGYfGKGtyU_0m1p6Fy3mIDQOW5"#
        + #"QHd42_jSXvqNwuJ_T7kt6zGZA7XSnn-jQN0uCjX-7hUv4jriYM1AVBjlHf_jpmr7dkFc1ezVb5JNyd5e815TK9k9Qy11wdLl3ssf"#
        + #"MzU0StS1vTbeWMdpHgvJK6fn7FUHWiLYQW4APPlLuwLqQLrU929xz3lkaErYKovOZfjXU8vCD--eOyBYNUMOQPaI-xdu5DZ3zixG"#
        + #"bptFKBPxNWJWc9Mvwi25G1QX-SdIOKvvcdU-FEf9PSVi7BUT-SKbS3Z2d_Q","e":"AQAB","d":"EeUhHjiseI7dk45HZvA_Y4B"#
        + #"6oAyGSUI5EtGRkT4eK8ZgmGJTOy48rcG-k9RB6eJfXthWM0mHBnJMUzYxf5D4U3IA72H9vgMcpTdCyTO2QAg6YXfYgetFOk67zdk"#
        + #"dU9sASvM8TrDy-NKKWEINbFHreklQjSgeprQ7uhw3vYY0NPqmdL0w2ONSLBR-7UnOfEnAylaam7gMF7UWCVQpI5We8EG9sXzEQW1"#
        + #"Jen25DPvybulPk8s1ceP0S99vkszq85yA0WpRy6RUuHLqVQW3yqd7bA0hgt3BYegA_qJPEv9nm-tAxM9Efl0umVt9RRlntpSrMrl"#
        + #"e3npgUiA6b89YbfNdgQ","p":"9S4IuIN2FkZTvO8hTdz4dUG1Sj_ZfF7hONW5tYFu1K0vlh0o49ZCArLz47-_gusniuz9LHLcHH"#
        + #"oQ4-dH9zwKT7OY3Pqr_cYGpMA5Kne5uEWwBSZfJkNjL1WwiFsRrWVnqEoWTwNXwMTvOYDHTMuj4SRgSYdOooM5iVwS7ZD9djE",""#
        + #"q":"27BE8D73ABW2Jr_qvvYkBqB5eyTcVfHzmM-32HchbWzmj2fWfhExNqZ5z9tlFdZbJSYjv3Zzx2eihzEhl4NNPvD-LIXC9bHi"#
        + #"i2mRRkHbi_Z5eqf3-zyahUyVc1zuRqt1s_-S4Q5R4bsrF4IgIc4HC9gZ2fM3b3i9_0GNuvyJlY0","dp":"k2Q3LeUpyj5A_OWs2"#
        + #"cgrPSJhP9-eeRv4vVgOqkTDQetTHiUtfbpCOKkn4RRWpveC8AuEL4JlPGFNYhSZuNFJSZyoGsA_QPIY8FX2h8ctyM9r_8yPisscB"#
        + #"0q2M2K7_8dkR1EylBFoYaSCQ8ldBpetTx21HL7Q0PWeUysc3eA53yE","dq":"eFJEj6iMs5kwmGyIb2p0NMTzhASeQNwxZMJvmL"#
        + #"k2r63zYRuoGIfmAl6PXM52wM0UQnZvIdAIfXA_TfgUw90AE7b-Hvhr3RE-WMjK7kXnrvKhehJA-XMp1lQpjnOZdU83OgyCL40eP5"#
        + #"m5cjiszJcAuPX0wrA47m6c8Q7AR2dFG4k","qi":"SU8569CbvX00paxgh2URRA5preL7_HoGZDCpxodkisjRpYykOPs7oX6bTCr"#
        + #"-C5kWQkFxfhzzdahgxv1jYps8juXSUU18oQAJQVfN528x1ZjIHi3nA3qz6bNhqECMDMgJGUiFrBur6dDOBsrQ4CrY9jM-uQz9pAv"#
        + #"6fMBR6Jy957o""#
    /// 1024 bits.
    package static let weakRSA =
        #""kty":"RSA","n":"vO1k6k3y_vZ5R4a9CnUGuKk4-gqU0XxwWVBupe6ofsRuUNVfC8qraetBXxvDB5wfs4E9WQvLJ59diFKwyR7"#
        + #"KiupC9QOKjc-MIQmMmP9LcYIDDpEzDkynHgZtAQBNYugycYlCCJ33WkPFZ_f-zflroDVKujx_NXZXIBf85OXA4Rk","e":"AQAB""#
        + #","d":"RhsVaniYZhIR-P-_oGTCpL1uviI1DPNPQWU-WeaQsdG0WdyDk32WVAyPSnqjyWweu16G5EcjEMXrUE3W-hqp73PLahK9bb"#
        + #"-VJNyugbEQ45yZhaRHqvuTbKy6pOHQNgBVSPCm_Hnfc99y_4ZuKU8_FYfbsyD-gD_-dVn2rhRZ-N0","p":"-zBFWF0uZenW1pIR"#
        + #"QU3Xxl0VBBh4xCyN5woZFTADsGxrrH3J9ezzhhPHohZLnrBBRXiyHcZNE8jBgJQ7ADxeKw","q":"wIvRowjnJPgWtED19jKFmch"#
        + #"KGpyWMZjjTaiY25OGr_xpZ2pIJHpjNy817-2rh-CC9b6cKTCVczZng4CfQPEfyw","dp":"ME_ndohtjSJ9tMVhVjsfnkJ28VO3n"#
        + #"punK2HQ0zdp7jvcNc_30Toi2I3jXrSFFN93nmIJeBqU5pI9TXq1ImV6Aw","dq":"dQjHjNyNesgdLMVLe7ErydSXTmOdW1o912d"#
        + #"COj0Kog-_la9hWGLXyaQ1mbeSCo4pq-uHCfZQ8O3Br4nPwu6NTw","qi":"UTjYXYwg5TOp2z_2g25bDH4zI3AtY1XsEfYtcUbFL"#
        + #"ghzzfXlwa4KwDdddxC0R7P-nyWeQcUXw1TO0YXKRjnqzg""#

    /// A JWK of these members.
    package static func jwk(_ members: String..., keyID: String? = nil) -> String {
        "{" + (members + [keyID.map { #""kid":"\#($0)""# }].compactMap(\.self)).joined(separator: ",") + "}"
    }
}
